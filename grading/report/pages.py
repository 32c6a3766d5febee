"""Pages of HTML whose text from students is escaped, and that run no script but the one below, known by its digest."""

import base64
import hashlib
import html

_STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 72rem; margin: 2rem auto; padding: 0 1rem; overflow-wrap: anywhere; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; } td, th { padding: .2rem .8rem; text-align: left; vertical-align: top; }
td, th { border-bottom: 1px solid #8886; overflow-wrap: normal; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: #8881; padding: .6rem; border-radius: .3rem; }
pre { margin: 0; }
.sortable th { cursor: pointer; } .sortable th::after { content: "\\00a0\\2195"; color: #8888; }
.passed::before { content: "\\2713\\00a0"; color: #2a8; } .failed::before { content: "\\2717\\00a0"; color: #d33; }
.not_written::before { content: "\\2013\\00a0"; } .warn { border-left: 4px solid #d33; padding-left: .8rem; }
img { max-width: 100%; background: white; } input { font: inherit; margin: .3rem 0; }
@media (max-width: 40rem) { body { margin: .5rem auto; padding: 0 .6rem; } td, th { padding: .2rem .4rem; } }
"""
# Click a heading to sort by its column; type to see the rows that hold a text.
SORTING = """
document.querySelectorAll(".sortable").forEach(block => {
  const body = block.querySelector("tbody"), rows = [...body.rows];
  block.querySelector("input").oninput = event => {
    const text = event.target.value.toLowerCase();
    rows.forEach(row => { row.hidden = !row.textContent.toLowerCase().includes(text); });
  };
  block.querySelectorAll("th").forEach((head, column) => {
    let sign = head.className === "n" ? -1 : 1;
    head.onclick = () => {
      const value = row => row.cells[column].textContent.trim();
      rows.sort((a, b) => sign * value(a).localeCompare(value(b), undefined, {numeric: true}));
      sign = -sign;
      body.append(...rows);
    };
  });
});
"""


def escaped(text: str) -> str:
    """Text as it shows in HTML."""
    return html.escape(str(text))


def table(head: list[str], rows: list[list[str]], numeric: set[int] = frozenset()) -> str:
    """A table of HTML cells; the columns of `numeric` stand to the right."""

    def line(tag: str, cells: list[str]) -> str:
        marked = (f'<{tag} class="n">' if index in numeric else f"<{tag}>" for index in range(len(cells)))
        return "<tr>" + "".join(f"{open_}{cell}</{tag}>" for open_, cell in zip(marked, cells, strict=True)) + "</tr>"

    body = "".join(line("td", row) for row in rows)
    return f'<div class="wide"><table><thead>{line("th", head)}</thead><tbody>{body}</tbody></table></div>'


def sortable(head: list[str], rows: list[list[str]], numeric: set[int] = frozenset()) -> str:
    """A table that SORTING can sort and filter."""
    search = '<input type="search" placeholder="only rows with ..." aria-label="only rows with">'
    return f'<div class="sortable">{search}{table(head, rows, numeric)}</div>'


def page(title: str, parts: list[str], script: str = "") -> str:
    """A whole page; `parts` are HTML, and no script runs but `script`."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src 'self' data:"
    policy += f"; script-src 'sha256-{digest}'" if script else ""
    head = f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">'
    head += f'<meta name="viewport" content="width=device-width"><title>{escaped(title)}</title><style>{_STYLE}</style>'
    body = "\n".join([*parts, f"<script>{script}</script>"] if script else parts)
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'
