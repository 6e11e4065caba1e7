"""What builds the documentation's site out of `docs/`, the README and the docstrings: see `mkdocs.yml`.

- `raises` reads the ``Raises:`` of a docstring. Pure.
- `public` finds all that is public, and which errors each member raises.
- `errors_table` is the table of the page on errors.
- `docstrings` hands the docstrings to mkdocstrings: errors spelt out, names linked. A griffe extension.
- `diagrams` draws Mermaid's sequence diagrams as SVG. Pure.
- `pages` makes pages of what lies outside of `docs/`, and mends the links. MkDocs' hooks.
"""
