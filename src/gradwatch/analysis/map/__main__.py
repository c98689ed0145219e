"""Write the page to the file named, or to standard output."""

import sys

from gradwatch.analysis.map import SYSTEMS
from gradwatch.analysis.map.page import page
from gradwatch.files import write_text


def main(arguments: list[str]) -> None:
    if arguments:
        write_text(arguments[0], page(SYSTEMS), overwrite=True)
    else:
        sys.stdout.write(page(SYSTEMS))


if __name__ == "__main__":
    main(sys.argv[1:])
