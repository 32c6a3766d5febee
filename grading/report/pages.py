"""Pages of HTML that allow no script, and whose text from students is escaped."""

import html

_STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; } td, th { padding: .2rem .8rem; text-align: left; border-bottom: 1px solid #8886; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: #8881; padding: .6rem; border-radius: .3rem; }
.passed::before { content: "\\2713\\00a0"; color: #2a8; } .failed::before { content: "\\2717\\00a0"; color: #d33; }
.not_written::before { content: "\\2013\\00a0"; } .warn { border-left: 4px solid #d33; padding-left: .8rem; }
img { max-width: 100%; background: white; }
"""

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src 'self' data:"


def escaped(text: str) -> str:
    """Text as it shows in HTML."""
    return html.escape(str(text))


def table(head: list[str], rows: list[list[str]], numeric: set[int] = frozenset()) -> str:
    def line(tag: str, cells: list[str]) -> str:
        marked = (f'<{tag} class="n">' if index in numeric else f"<{tag}>" for index in range(len(cells)))
        return "<tr>" + "".join(f"{open_}{cell}</{tag}>" for open_, cell in zip(marked, cells, strict=True)) + "</tr>"

    return "<table>" + line("th", head) + "".join(line("td", row) for row in rows) + "</table>"


def page(title: str, parts: list[str]) -> str:
    """A whole page; `parts` are HTML."""
    head = f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
    head += f'<meta name="viewport" content="width=device-width"><title>{escaped(title)}</title><style>{_STYLE}</style>'
    body = "\n".join(parts)
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'
