"""A page as a test sees it: its elements, its tables and its text. What is not closed as it was opened fails."""

from html.parser import HTMLParser

VOID = {"meta", "img", "br", "link", "input"}


class Page(HTMLParser):
    """Tags with attributes, texts, and tables as rows of cells."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.tables: list[list[list[str]]] = []
        self.texts: list[str] = []
        self.feed(source)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attributes]
        assert len(names) == len(set(names)), f"{tag} has an attribute twice: {names}"
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"{tag} closed and never opened"
        assert self.open[-1] == tag, f"expected the end of {self.open[-1]}, got that of {tag}"
        self.open.pop()

    def handle_data(self, text: str) -> None:
        if self.open and self.open[-1] != "style":
            self.texts.append(text)
        if any(tag in ("td", "th") for tag in self.open):
            self.tables[-1][-1][-1] += text

    def all(self, attribute: str) -> list[str]:
        """The values of an attribute wherever it is."""
        return [value or "" for _, attributes in self.tags for name, value in attributes.items() if name == attribute]

    @property
    def text(self) -> str:
        return "".join(self.texts)
