"""Hooks for mkdocs, which builds the Markdown that GitHub shows and the tests run."""


def on_page_markdown(markdown: str, **_) -> str:
    """Hide the tag `test` of code blocks, which the site's Markdown does not know."""
    return markdown.replace("```console test", "```console")
