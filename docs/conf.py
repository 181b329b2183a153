"""Settings of Sphinx, which builds the pages of this folder and the API reference from the docstrings."""

from importlib.metadata import version as version_of

import zbopt

project = "zbopt"
release = version = version_of("zbopt")
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "index"
html_theme = "furo"
html_title = f"zbopt {release}"
suppress_warnings = [
    "myst.xref_missing"
]  # links to files beside the documentation, which tests/unit/test_docs.py checks

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
_ALIASES = ("Amount", "AmountList", "Time", "TimeList", "OneOrMore", "Record", "ExportFormat", "ImportFormat")
autodoc_type_aliases = dict(zip(_ALIASES, _ALIASES, strict=True))
napoleon_numpy_docstring = False
napoleon_use_ivar = True
python_maximum_signature_line_length = 100

_SHORT_SIGNATURES = {
    "zbopt.Instance": "(**fields)",
    "zbopt.Event": "(kind, stage, virtual_stage, microbatch, start, end, iteration=0)",
}


def _list_fields(app, what, name, obj, options, lines):  # type: ignore[no-untyped-def]
    """List the fields of an instance with the text that each declares, which is where the schemas take it from too."""
    if name == "zbopt.Instance":
        fields = zbopt.Instance.model_fields
        lines += [f":ivar {field}: {info.description}" for field, info in fields.items() if info.description]


def _shorten_signature(app, what, name, obj, options, signature, returns):  # type: ignore[no-untyped-def]
    """Show the parameters alone where pydantic's types would fill a page."""
    return (_SHORT_SIGNATURES[name], None) if name in _SHORT_SIGNATURES else None


def setup(app):  # type: ignore[no-untyped-def]
    """Register what this file adds to Sphinx."""
    app.connect("autodoc-process-docstring", _list_fields)
    app.connect("autodoc-process-signature", _shorten_signature)
