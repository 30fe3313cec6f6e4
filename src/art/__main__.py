"""`python -m art`: the same as the command `art`."""

import sys

from art.cli import main

if __name__ == "__main__":
    sys.exit(main())
