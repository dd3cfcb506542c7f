"""`python -m trimtab` is `trimtab`: what torchrun starts on every rank."""

from trimtab.cli import main

if __name__ == "__main__":
    main()
