"""Bytes of a file to rows of checked cells.

Every reader goes through here, so that an empty, cut-off, binary, gigantic or mistyped file gives the same kind of
sentence everywhere. Numbers are decimal digits and nothing else: no exponent, no NaN, no underscore, no white space,
which Python's own ``int`` and ``float`` would all accept. No reader may catch an error of this module to guess on.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import ValidationError

from controlplane.domain.quantities import MAX_MS
from controlplane.intake.traces import IntakeError

MAX_BYTES = 2**28
"""256 MiB of text: ten times the largest public trace of the kinds read here, and safe to hold in memory."""
_GZIP = b"\x1f\x8b"
_WHOLE = re.compile(r"-?[0-9]{1,19}\Z")
_DECIMAL = re.compile(r"(-?)([0-9]{1,19})(?:\.([0-9]{1,18}))?\Z")
_SHOWN = 40
"""Characters of a wrong cell that are repeated to the user."""


def read_bytes(path: Path) -> bytes:
    """The file as it is on disk. Raises :class:`IntakeError` for what the file system refuses."""
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):  # a device or a pipe may have no end
            raise IntakeError(str(path), 0, "this is not a file", "name a file")
        if path.stat().st_size > MAX_BYTES:
            raise IntakeError(str(path), 0, f"the file is larger than {MAX_BYTES:,} bytes", "split it")
        return path.read_bytes()
    except OSError as error:
        reason = (error.strerror or type(error).__name__).lower()
        raise IntakeError(str(path), 0, f"cannot be read ({reason})", "check the path and its permissions") from error


def decode_text(file: str, data: bytes) -> str:
    """UTF-8 text, decompressed if the bytes are gzip. A byte order mark is dropped."""
    if data.startswith(_GZIP):
        data = _decompressed(file, data)
    if not data.strip():
        raise IntakeError(file, 0, "the file is empty", "give a file with a header and rows")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        what = f"byte 0x{data[error.start]:02x} is not UTF-8 text"
        raise IntakeError(file, line, what, "save the file as UTF-8") from error


def _decompressed(file: str, data: bytes) -> bytes:
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
            text = stream.read(MAX_BYTES + 1)
    except EOFError as error:
        raise IntakeError(file, 0, "the gzip file is cut off", "copy or download it again") from error
    except (OSError, zlib.error) as error:
        raise IntakeError(file, 0, "the gzip file is damaged", "copy or download it again") from error
    if len(text) > MAX_BYTES:
        raise IntakeError(file, 0, f"the file unpacks to more than {MAX_BYTES:,} bytes", "split it")
    return text


class Row:
    """One row of a table with a header; cells are found by column name."""

    __slots__ = ("_cells", "_columns", "file", "line")

    def __init__(self, file: str, line: int, columns: dict[str, int], cells: Sequence[str]) -> None:
        self.file = file
        self.line = line
        self._columns = columns
        self._cells = cells

    def __contains__(self, column: str) -> bool:
        return column in self._columns

    def text(self, column: str) -> str:
        """The cell, without surrounding white space; empty if the table has no such (optional) column."""
        index = self._columns.get(column)
        return "" if index is None else self._cells[index].strip()

    def whole(self, column: str, most: int, least: int = 0) -> int:
        """The cell as an integer between bounds."""
        return whole_number(self.file, self.line, column, self.text(column), most, least)

    def fault(self, what: str, fix: str) -> IntakeError:
        """An error at this row."""
        return IntakeError(self.file, self.line, what, fix)


def rows(file: str, text: str, required: Sequence[str]) -> Iterator[Row]:
    """The rows of a CSV text. The first row is the header; columns beyond the required ones may be there.

    Raises :class:`IntakeError` for a missing or repeated column, a row of another length, or no row at all.
    """
    reader = csv.reader(io.StringIO(text, newline=""))
    columns: dict[str, int] | None = None
    found = False
    try:
        for cells in reader:
            if not cells:
                continue
            if columns is None:
                columns = _header(file, reader.line_num, cells, required)
                continue
            if len(cells) != len(columns):
                what = f"the row has {len(cells)} cells, the header has {len(columns)}"
                raise IntakeError(file, reader.line_num, what, "make them equal")
            found = True
            yield Row(file, reader.line_num, columns, cells)
    except csv.Error as error:
        raise IntakeError(file, reader.line_num, f"not a CSV row ({error})", "correct the row") from error
    if not found:
        raise IntakeError(file, 0, "the file has no rows below its header", "give a file with at least one row")


def _header(file: str, line: int, cells: Sequence[str], required: Sequence[str]) -> dict[str, int]:
    columns: dict[str, int] = {}
    for index, cell in enumerate(cells):
        name = cell.strip()
        if name in columns:
            raise IntakeError(file, line, f"column {shown(name)} is there twice", "keep one of them")
        columns[name] = index
    missing = [name for name in required if name not in columns]
    if missing:
        what = f"the header lacks column {', '.join(missing)}"
        raise IntakeError(file, line, what, f"give a table with the columns {', '.join(required)}")
    return columns


def whole_number(file: str, line: int, name: str, text: str, most: int, least: int = 0) -> int:
    """An integer between bounds, or :class:`IntakeError` that names the field."""
    if not _WHOLE.match(text):
        raise _no_number(file, line, name, text, "a whole number")
    return _bounded(file, line, name, int(text), most, least)


def milliseconds(file: str, line: int, name: str, text: str, least: int = 0) -> int:
    """Decimal seconds such as ``66.0`` to milliseconds, rounded down; the result is at least ``least``."""
    match = _DECIMAL.match(text)
    if not match:
        raise _no_number(file, line, name, text, "a number of seconds")
    sign, whole, fraction = match.groups()
    amount_ms = int(whole) * 1_000 + int(((fraction or "") + "000")[:3])
    return _bounded(file, line, name, -amount_ms if sign else amount_ms, MAX_MS, least, " (in ms)")


def _no_number(file: str, line: int, name: str, text: str, wanted: str) -> IntakeError:
    what = f"{name} is {shown(text)}, not {wanted}" if text else f"{name} is empty, not {wanted}"
    return IntakeError(file, line, what, "write it as decimal digits")


def _bounded(file: str, line: int, name: str, value: int, most: int, least: int, unit: str = "") -> int:
    if value < least:
        raise IntakeError(file, line, f"{name} is {value:,}{unit}, below {least:,}", "correct it")
    if value > most:
        raise IntakeError(file, line, f"{name} is {value:,}{unit}, above the limit of {most:,}", "correct it")
    return value


def shown(text: str) -> str:
    """A piece of the user's text as it can stand in a sentence: quoted, escaped, shortened."""
    return ascii(text if len(text) <= _SHOWN else text[:_SHOWN] + "...")


def unique_name(row: Row, column: str, seen: dict[str, int]) -> str:
    """The cell as a name that no earlier row has; ``seen`` keeps name -> line."""
    name = row.text(column)
    if not name:
        raise row.fault(f"{column} is empty", "name the row")
    first = seen.setdefault(name, row.line)
    if first != row.line:
        raise row.fault(f"{column} {shown(name)} is already in line {first}", "give every row its own name")
    return name


def domain_fault(file: str, line: int, error: ValidationError) -> IntakeError:
    """What the domain refused, at a place in a file."""
    first = error.errors(include_url=False, include_input=True)[0]
    where = ".".join(str(part) for part in first["loc"])
    message = first["msg"].removeprefix("Value error, ")
    given = f" is {shown(str(first['input']))}" if where else ""
    what = f"{where}{given}: {message}" if where else message
    return IntakeError(file, line, what, "correct it")
