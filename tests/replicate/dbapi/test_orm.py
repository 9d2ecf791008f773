"""SQLAlchemy 2 and Alembic through our connection: sessions, savepoints, and migrations by copy, drop and rename; the
secondary is equal after each step.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import alembic.command
import alembic.config
import apsw
import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import orm
from sqlalchemy.dialects.sqlite import insert

import replicate.dbapi
from replicate import connect
from replicate.compare.compare import compare
from tests.harness.pair import Pair, work_all


class Base(orm.DeclarativeBase):
    pass


class Person(Base):
    __tablename__ = "person"
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    name: orm.Mapped[str] = orm.mapped_column(sa.String(40), unique=True)
    pets: orm.Mapped[list[Pet]] = orm.relationship(back_populates="owner", cascade="all, delete-orphan")


class Pet(Base):
    __tablename__ = "pet"
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    owner_id: orm.Mapped[int] = orm.mapped_column(sa.ForeignKey("person.id"))
    weight: orm.Mapped[float | None]
    picture: orm.Mapped[bytes | None]
    owner: orm.Mapped[Person] = orm.relationship(back_populates="pets")


class Site:
    """A pair, and an engine of its primary. `transactional`: with BEGIN before schema changes too, as SQLAlchemy's
    documentation recommends."""

    def __init__(self, directory: Path, *, transactional: bool) -> None:
        self.pair = Pair.create(directory, "")
        self.pair.seed()
        self.engine = sa.create_engine(
            "sqlite://",
            creator=lambda: connect(self.pair.primary.path),
            module=replicate.dbapi,
            poolclass=sa.pool.QueuePool,
        )
        if transactional:
            sa.event.listen(self.engine, "connect", lambda made, _: setattr(made, "isolation_level", None))
            sa.event.listen(self.engine, "begin", lambda made: made.exec_driver_sql("BEGIN"))

    def there(self, sql: str) -> list[Any]:
        """What a query gives on the secondary."""
        reader = apsw.Connection(str(self.pair.secondary.region("main").path), flags=apsw.SQLITE_OPEN_READONLY)
        found: list[Any] = reader.execute(sql).fetchall()
        reader.close()
        return found

    def prove(self) -> int:
        """Bring the secondary up to date, and require that both are equal; the last number."""
        pair = self.pair
        with pair.receive_pool() as pool, pair.applier(pool) as applier:
            pair.deliver(pool)
            work_all(applier)
            assert applier.applied_seqno == pair.last_seqno()
        assert compare(pair.primary, pair.secondary, timeout_s=5).equal
        return pair.last_seqno()


@pytest.fixture(params=[False, True], ids=["as it comes", "with BEGIN"])
def site(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    made = Site(tmp_path, transactional=request.param)
    yield made
    made.engine.dispose()


def test_sessions(site: Site) -> None:
    Base.metadata.create_all(site.engine)
    site.prove()
    with orm.Session(site.engine) as session:
        session.add_all(
            Person(name=f"p{number}", pets=[Pet(weight=number / 4), Pet(picture=bytes([number]))])
            for number in range(50)
        )
        session.commit()
        with pytest.raises(sa.exc.IntegrityError), session.begin_nested():
            session.execute(insert(Person).values(name="p1"))
        session.execute(insert(Person).values(name="p1").on_conflict_do_update(["name"], set_={"name": "P1"}))
        returned = session.execute(sa.update(Pet).where(Pet.id < 5).values(weight=9.5).returning(Pet.id)).scalars()
        assert sorted(returned) == [1, 2, 3, 4]
        session.delete(session.scalars(sa.select(Person).where(Person.name == "p2")).one())
        session.commit()
        before = site.prove()
        session.add(Person(name="lost"))
        session.flush()
        session.rollback()
        assert site.prove() == before
    assert site.there("SELECT name FROM person WHERE id = 2") == [("P1",)]
    assert site.there("SELECT count(*), max(weight) FROM pet") == [(98, 12.25)]


REVISIONS = {
    "one": """
def upgrade():
    op.create_table("item", sa.Column("id", sa.Integer, primary_key=True), sa.Column("name", sa.String(10)),
                    sa.Column("old", sa.Integer))
    op.create_index("item_name", "item", ["name"])

def downgrade():
    op.drop_table("item")
""",
    "two": """
def upgrade():
    with op.batch_alter_table("item", recreate="always") as batch:
        batch.add_column(sa.Column("price", sa.Numeric(10, 2), nullable=False, server_default="1.50"))
        batch.drop_column("old")
        batch.alter_column("name", new_column_name="title", existing_type=sa.String(10), type_=sa.Text, nullable=False)
    with op.batch_alter_table("item") as batch:
        batch.create_unique_constraint("one_title", ["title"])
    op.execute("UPDATE item SET price = price * 2 WHERE id = 2")

def downgrade():
    with op.batch_alter_table("item") as batch:
        batch.drop_constraint("one_title", type_="unique")
        batch.drop_column("price")
        batch.add_column(sa.Column("old", sa.Integer))
        batch.alter_column("title", new_column_name="name", existing_type=sa.Text, type_=sa.String(10), nullable=True)
""",
}
ENVIRONMENT = """
from alembic import context
context.configure(connection=context.config.attributes["connection"], target_metadata=None)
with context.begin_transaction():
    context.run_migrations()
"""


@pytest.fixture
def migrations(tmp_path: Path) -> alembic.config.Config:
    scripts = tmp_path / "migrations"
    (scripts / "versions").mkdir(parents=True)
    (scripts / "env.py").write_text(ENVIRONMENT)
    before = None
    for name, body in REVISIONS.items():
        head = f"from alembic import op\nimport sqlalchemy as sa\nrevision = {name!r}\ndown_revision = {before!r}\n"
        (scripts / "versions" / f"{name}.py").write_text(head + body)
        before = name
    made = alembic.config.Config()
    made.set_main_option("script_location", str(scripts))
    made.set_main_option("path_separator", "os")
    return made


def migrate(site: Site, migrations: alembic.config.Config, verb: str, revision: str) -> None:
    with site.engine.begin() as connection:
        migrations.attributes["connection"] = connection
        getattr(alembic.command, verb)(migrations, revision)
    site.prove()


def ours_left_out(name: str | None, kind: str, parents: Any) -> bool:
    """orms.md's `include_name`."""
    return not (kind == "table" and str(name).startswith("_replicate_"))


def test_migrations(site: Site, migrations: alembic.config.Config) -> None:
    migrate(site, migrations, "upgrade", "one")
    with site.engine.begin() as connection:
        connection.execute(sa.text("INSERT INTO item (name, old) VALUES ('a', 1), ('b', 2)"))
    migrate(site, migrations, "upgrade", "head")
    assert site.there("SELECT id, title, price FROM item") == [(1, "a", 1.5), (2, "b", 3)]
    with site.engine.begin() as connection:  # the guards of the table that was renamed, and its unique constraint
        connection.execute(sa.text("INSERT INTO item (title) VALUES ('c')"))
    with pytest.raises(sa.exc.IntegrityError), site.engine.begin() as connection:
        connection.execute(sa.text("INSERT INTO item (title) VALUES ('a')"))
    site.prove()
    migrate(site, migrations, "downgrade", "one")
    assert site.there("SELECT id, name, old FROM item") == [(1, "a", None), (2, "b", None), (3, "c", None)]
    migrate(site, migrations, "downgrade", "base")


def test_our_tables_can_be_left_out_of_reflection(site: Site) -> None:
    Base.metadata.create_all(site.engine)
    metadata = sa.MetaData()
    metadata.reflect(site.engine, only=lambda name, _: not name.startswith("_replicate_"))
    assert set(metadata.tables) == {"person", "pet"}
    assert {"_replicate_region"} < {*sa.inspect(site.engine).get_table_names()}
    with site.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"include_name": ours_left_out})
        assert compare_metadata(context, Base.metadata) == []
        context = MigrationContext.configure(connection)
        assert {change[0] for change in compare_metadata(context, Base.metadata)} >= {"remove_table"}
