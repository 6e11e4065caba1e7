"""The code that builds the documentation site from `docs/`, the README and the docstrings: see `mkdocs.yml`.

- `raises` reads the ``Raises:`` of a docstring. Pure.
- `public` finds all public members, and the errors that each raises.
- `errors_table` is the table of the page on errors.
- `docstrings` hands the docstrings to mkdocstrings: errors spelt out, names linked. A griffe extension.
- `diagrams` draws Mermaid's sequence diagrams as SVG. Pure.
- `pages` makes pages of what lies outside of `docs/`, and mends the links. MkDocs' hooks.
"""
