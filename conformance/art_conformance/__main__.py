"""`python -m art_conformance`."""

import sys

from art_conformance.cli import main

sys.exit(main())
