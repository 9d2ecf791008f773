"""Django through our connection, by the engine that the manual prints: migrations that copy tables, transactions,
savepoints and what is rolled back; the secondary is equal after each step.

Each step is a process: Django's settings are one for a process, and it registers its converters and adapters with
sqlite3, where other tests would find them.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import apsw
import pytest

from replicate.compare.compare import compare
from tests.harness.manual import blocks, chapter, section
from tests.harness.pair import Pair, work_all

MODELS = """
from django.db import models
class Person(models.Model):
    name = models.CharField(max_length=40, unique=True)
class Pet(models.Model):
    owner = models.ForeignKey(Person, models.CASCADE, related_name="pets")
    born = models.DateTimeField()
    price = models.DecimalField(max_digits=6, decimal_places=2, null=True)
    picture = models.BinaryField(default=b"")
    about = models.JSONField(default=dict)
"""
FIRST = """
from django.db import migrations, models
class Migration(migrations.Migration):
    initial = True
    operations = [
        migrations.CreateModel("Person", [
            ("id", models.BigAutoField(primary_key=True)),
            ("name", models.CharField(max_length=40, unique=True)),
        ]),
        migrations.CreateModel("Pet", [
            ("id", models.BigAutoField(primary_key=True)),
            ("owner", models.ForeignKey("shop.person", models.CASCADE, related_name="pets")),
            ("born", models.DateTimeField()),
            ("price", models.DecimalField(max_digits=6, decimal_places=2, null=True)),
            ("picture", models.BinaryField(default=b"")),
            ("about", models.JSONField(default=dict)),
        ]),
    ]
"""
SECOND = """
from django.db import migrations, models
def fill(apps, editor):
    apps.get_model("shop", "Person").objects.filter(full_name="b").update(age=7)
class Migration(migrations.Migration):
    dependencies = [("shop", "0001_initial")]
    operations = [
        migrations.RenameField("person", "name", "full_name"),
        migrations.AlterField("person", "full_name", models.TextField(unique=True)),
        migrations.AddField("person", "age", models.PositiveIntegerField(default=1)),
        migrations.RunPython(fill, migrations.RunPython.noop),
        migrations.RemoveField("pet", "picture"),
        migrations.AddIndex("pet", models.Index(fields=["born", "-price"], name="pet_born")),
        migrations.AddConstraint("person", models.UniqueConstraint("age", "full_name", name="person_age")),
        migrations.RenameModel("pet", "animal"),
    ]
"""
PROGRAM = """
import datetime, decimal, sys
import django, replicate
from django.conf import settings
OPTIONS = {"timeout": 20, "transaction_mode": "IMMEDIATE"}
settings.configure(
    DATABASES={"default": {"ENGINE": "shop.replicated", "NAME": sys.argv[1], "OPTIONS": OPTIONS}},
    INSTALLED_APPS=["shop"], DEFAULT_AUTO_FIELD="django.db.models.BigAutoField", USE_TZ=False)
django.setup()
from django.core.management import call_command
from django.db import IntegrityError, connection, transaction
from django.db.models import Count, F
from django.db.models.functions import Upper
from shop.models import Person, Pet

def work():
    born = datetime.datetime(2024, 2, 29, 12, 30, 1, 5)
    with transaction.atomic():
        a, b = Person.objects.bulk_create([Person(name="a"), Person(name="b")])
        about = {"k": [1]}
        Pet.objects.create(owner=a, born=born, price=decimal.Decimal("1.50"), picture=bytes(range(256)), about=about)
        Pet.objects.bulk_create(Pet(owner=b, born=born, price=number) for number in range(1500))
        try:
            with transaction.atomic():
                Pet.objects.all().delete()
                Person.objects.create(name="a")
        except IntegrityError:
            pass
        with transaction.atomic():
            Pet.objects.filter(price__gte=1000).delete()
        Pet.objects.filter(owner=b).update(price=F("price") + 1)
    Person.objects.update_or_create(name="c", defaults={"name": "C"})
    pet = Pet.objects.get(owner=a)
    assert (pet.born, str(pet.price), bytes(pet.picture)) == (born, "1.50", bytes(range(256)))
    assert pet.about == about and Pet.objects.filter(about__k__0=1, born__year=2024).get() == pet
    counted = Person.objects.annotate(n=Count("pets"), upper=Upper("name")).order_by("id").values_list("upper", "n")
    assert [*counted] == [("A", 1), ("B", 1000), ("C", 0)]
    assert [*Person.objects.raw("SELECT * FROM shop_person WHERE name = %(n)s", {"n": "a"})] == [a]

def in_turn():
    # A transaction holds the region from its begin on, before it has written anything.
    with transaction.atomic():
        Person.objects.count()
        try:
            replicate.connect(sys.argv[1], timeout=0).execute("DELETE FROM shop_person")
        except replicate.OperationalError as error:
            assert error.code == "BUSY", error
        else:
            raise AssertionError("another connection could write")

def lost():
    try:
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute("INSERT INTO shop_person (name) VALUES (%s)", ["d"])
            Pet.objects.all().delete()
            raise KeyError
    except KeyError:
        pass
    transaction.set_autocommit(False)
    Person.objects.create(name="e")
    transaction.rollback()
    assert Person.objects.count() == 3 and Pet.objects.count() == 1001

if len(sys.argv) > 3:
    call_command(*sys.argv[2:], verbosity=0)
else:
    globals()[sys.argv[2]]()
connection.close()
"""


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    made = Pair.create(tmp_path, "")
    made.seed()
    return made


@pytest.fixture
def shop(pair: Pair) -> Path:
    """The application's package: models, migrations, and the manual's engine."""
    (printed,) = blocks(section(chapter("orms"), "Django"), "python")
    package = pair.directory / "shop"
    for name, text in {
        "__init__.py": "",
        "models.py": MODELS,
        "migrations/__init__.py": "",
        "migrations/0001_initial.py": FIRST,
        "migrations/0002_later.py": SECOND,
        "replicated/__init__.py": "",
        "replicated/base.py": printed,
    }.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    (pair.directory / "program.py").write_text(PROGRAM)
    return package.parent


def there(pair: Pair, sql: str) -> list[Any]:
    """What a query gives on the secondary."""
    reader = apsw.Connection(str(pair.secondary.region("main").path), flags=apsw.SQLITE_OPEN_READONLY)
    found: list[Any] = reader.execute(sql).fetchall()
    reader.close()
    return found


def step(pair: Pair, directory: Path, *arguments: str) -> int:
    """Run the program, bring the secondary up to date, and require that both are equal; the last number."""
    ran = subprocess.run(
        [sys.executable, "program.py", str(pair.primary.path), *arguments],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    with pair.receive_pool() as pool, pair.applier(pool) as applier:
        pair.deliver(pool)
        work_all(applier)
        assert applier.applied_seqno == pair.last_seqno()
    assert compare(pair.primary, pair.secondary, timeout_s=5).equal
    return pair.last_seqno()


@pytest.mark.slow
def test_django(pair: Pair, shop: Path) -> None:
    step(pair, shop, "migrate", "shop", "0001")
    before = step(pair, shop, "work")
    assert there(pair, "SELECT count(*), sum(price) FROM shop_pet") == [(1001, 500501.5)]
    assert step(pair, shop, "lost") == before
    assert step(pair, shop, "in_turn") == before
    step(pair, shop, "migrate", "shop")
    assert there(pair, "SELECT full_name, age FROM shop_person ORDER BY id") == [("a", 1), ("b", 7), ("C", 1)]
    assert there(pair, "SELECT count(*) FROM shop_animal") == [(1001,)]
    step(pair, shop, "migrate", "shop", "0001")
    assert there(pair, "SELECT name FROM shop_person ORDER BY id") == [("a",), ("b",), ("C",)]
    step(pair, shop, "migrate", "shop", "zero")
    assert there(pair, "SELECT name FROM sqlite_schema WHERE name LIKE 'shop%'") == []
