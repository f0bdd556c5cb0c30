"""`python -m decoupled`."""

from decoupled.cli import main

main()
