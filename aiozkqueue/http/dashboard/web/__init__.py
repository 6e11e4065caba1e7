"""The parts that all pages share: the visitor and the form, the templates and files, the errors."""
