"""`python -m gradwatch` is the command line."""

from gradwatch.cli.main import main

main()
