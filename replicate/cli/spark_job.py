"""What `spark-submit` runs: the command line of `replicate`, with the master that spark-submit was given.

spark-submit --master spark://HOST:7077 …/replicate/cli/spark_job.py -i INSTANCE archive URI
"""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the command line of this script."""
    # A script's own directory comes first on the path, and ours has modules of common names.
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    from replicate.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
