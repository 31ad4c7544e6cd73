"""``python -m dflash_controller.fetch``."""

from dflash_controller.fetch.program import console

if __name__ == "__main__":
    console()
