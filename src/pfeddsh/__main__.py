"""`python -m pfeddsh` does what the `pfeddsh` command does."""

from pfeddsh.cli import main

main()
