"""`python -m dose_ood` is the `dose` command."""

from dose_ood.cli import main

main()
