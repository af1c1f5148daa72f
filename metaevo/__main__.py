"""`python -m metaevo`: the command `metaevo`."""

from metaevo.cli.main import command

if __name__ == "__main__":
    command()
