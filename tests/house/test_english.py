"""No words of the project's old manner in docstrings, comments, messages, docs and configuration files.

The words themselves are not wrong. They are a sign of sentences that name nothing ("what was asked", "whoever looks").
The table gives the plain form of each.
"""

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest
from house.measure import by_folder

ROOT = Path(__file__).parents[2]
OLD = {
    "again, new": "afresh|anew",
    "name the person, process or program": "anybody|everybody|somebody|whoever|whom|whosoever",
    "up to, if": "as far as",
    "be fetched, be available": "be had",
    "because of limited memory": "by the memory there is",
    "can be distinguished, differs": "can be told",
    "expensive": "dear|dearer|dearest",
    "resuming, resumed": "going on with|gone on with",
    "broadcast, receive": "hear",
    "handled": "heeded",
    "compared with": "held against",
    "with status 0, undisturbed": "in peace",
    "as text": "in words",
    "is not the task of": "is no business of",
    "recognised, fingerprinted": "known again",
    "no process, no user, not yet": "nobody",
    "name the owner": "of theirs",
    "start a new sentence": "of which|whereof",
    "except, except that": "save for|save that",
    "name the number": "so many",
    "even": "so much as",
    "about": "some [0-9]+",
    "third-party": "somebody else",
    "of it, its": "thereof",
    "the question, the configuration": "what is asked|what was asked",
}
WORDS = sorted("|".join(OLD.values()).split("|"), key=len, reverse=True)
PATTERN = re.compile(rf"\b({'|'.join(WORDS)})\b".replace(" ", r"\s+"), re.IGNORECASE)
FOLDERS = ("study", "analysis", "workloads", "benchmarks", "conf", "docs", "tests/helpers", "tests/house")
ENDS = (".py", ".md", ".yaml", ".yml", ".css", ".jinja", ".toml")
FILES = sorted(
    str(path.relative_to(ROOT))
    for top in (*FOLDERS, "*.md", "*.yml", "*.toml")
    for path in (ROOT.glob(top) if "*" in top else (ROOT / top).rglob("*"))
    if path.suffix in ENDS and path != Path(__file__).resolve()
)


def prose(source: str, is_python: bool = True) -> list[tuple[int, str]]:
    """(line, text) of every comment and string literal of a Python file; of any other file, the whole text."""
    if not is_python:
        return [(1, source)]
    comments: list[tuple[int, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            text, line = token.string.removeprefix("#"), token.start[0]
            if comments and comments[-1][0] + comments[-1][1].count("\n") == line - 1:
                first, before = comments.pop()  # a sentence goes on in the next line
                comments.append((first, f"{before}\n{text}"))
            else:
                comments.append((line, text))
    strings = [
        (node.lineno, node.value)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    return comments + strings


def old_words(source: str, is_python: bool = True) -> list[str]:
    """`line: word -> plain form` of each word of the old manner."""
    found = []
    for first, text in prose(source, is_python):
        for match in PATTERN.finditer(text):
            word = " ".join(match[0].lower().split())
            plain = next(to for to, words in OLD.items() if re.fullmatch(words, word))
            found.append(f"line {first + text[: match.start()].count(chr(10))}: {match[0]!r} -> {plain}")
    return found


def test_old_words_are_found_in_prose_alone():
    source = 'anew = 1\n"""Begun\nanew."""\n# of the lanes, so\n# many are\nx = f"{anew} dear \'anew_file\'"\n'
    found = [each.split(" ->")[0] for each in old_words(source)]
    assert found == [r"line 4: 'so\n many'", "line 3: 'anew'", "line 6: 'dear'"]
    assert old_words("some 30 trials", is_python=False) == ["line 1: 'some 30' -> about"]


@pytest.mark.parametrize("files", by_folder(FILES).values(), ids=by_folder(FILES))
def test_plain_english(files):
    found = [f"{file}, {word}" for file in files for word in old_words((ROOT / file).read_text(), file.endswith(".py"))]
    assert not found, "rewrite the sentences"
