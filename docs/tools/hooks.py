"""What mkdocs does beside Markdown: notebooks become pages, figures follow the page's colours, settings a table."""

import json
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

DOCS = Path(__file__).parents[1]
FIGURE = re.compile(r'<img [^>]*src="(?:\.\./)?figures/(\w+)\.svg"[^>]*/?>')


def on_files(files: Files, config: Any) -> Files:
    """Every notebook becomes a page; the notebook itself can be downloaded from there."""
    for file in [file for file in files if file.src_uri.endswith(".ipynb")]:
        text = page(json.loads(Path(str(file.abs_src_path)).read_text()), Path(file.src_uri).name)
        files.append(File.generated(config, file.src_uri.removesuffix(".ipynb") + ".md", content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    return markdown.replace("<!-- keys of a run -->", keys()) if "<!-- keys of a run -->" in markdown else markdown


def on_page_content(html: str, **_: Any) -> str:
    """Figures are put into the page, so that they have its colours and their text can be read and searched."""
    return FIGURE.sub(lambda found: (DOCS / "figures" / f"{found[1]}.svg").read_text(), html)


def page(notebook: dict[str, Any], name: str) -> str:
    """A notebook as Markdown: its text, its code, and what the code printed or drew."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        parts += [shown for output in cell["outputs"] if (shown := _output(output))]
    return "\n\n".join(parts) + f"\n\n[Download this notebook]({name})\n"


def _output(output: dict[str, Any]) -> str:
    data = output.get("data", {})
    if "image/png" in data:
        return f"![What the cell above draws](data:image/png;base64,{''.join(data['image/png']).strip()})"
    text = "".join(output.get("text", data.get("text/plain", ""))).rstrip()
    return f"``` {{.text .output}}\n{text}\n```" if text else ""


def keys() -> str:
    """The keys of a run as a table, from the descriptions by which the command line explains them."""
    from pfeddsh import Config

    rows = ["| key | default | what it is |", "|---|---|---|"]
    for name, field in Config.model_fields.items():
        default = field.get_default(call_default_factory=True)
        shown = json.dumps(default) if isinstance(default, str | int | float | bool) else ""
        rows.append(f"| `{name}` | {f'`{shown}`' if shown else ''} | {(field.description or '').replace('|', '/')} |")
    return "\n".join(rows)
