"""`python -m lessmore` is the command line."""

import sys

from lessmore.cli import main

if __name__ == "__main__":
    sys.exit(main())
