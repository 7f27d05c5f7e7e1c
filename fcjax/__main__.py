"""`python -m fcjax` is the command `fcjax`."""

from fcjax.cli.commands import main

if __name__ == "__main__":
    main()
