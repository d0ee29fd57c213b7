"""The daemon's log: an event a line, as text or JSON, to standard error or a file that is rotated.

An event is what is logged with the standard library's loggers; fields come with it by :func:`event`.

    text   2026-12-02T08:30:00.123Z INFO ptocache.service: compile key=3f… outcome=miss total_ms=812
    json   {"time": "2026-12-02T08:30:00.123Z", "level": "info", "logger": "ptocache.service",
            "message": "compile", "key": "3f…", "outcome": "miss", "total_ms": 812}

An event is one line whatever it holds: what is not printable is escaped. Only a fault of ptocache or
of a plugin has a traceback: in text on further lines that begin with ``  | ``, in JSON as
``traceback``. Whatever becomes of the log, the daemon goes on: a line that cannot be written, or only by
waiting, is dropped.
"""

from __future__ import annotations

import io
import json
import logging
import logging.handlers
import os
import re
import select
import time
from typing import Any, Protocol

_STANDARD_ERROR = 2
# A pipe that is ready takes so much without blocking (pipe(7), PIPE_BUF).
_AT_ONCE = 4096
_BARE = re.compile(r"[\w./:@%+,~<>\[\]()-]+")


class _HasSettings(Protocol):
    def __getitem__(self, name: str) -> Any:
        """The value of a setting."""


def event(logger: logging.Logger, level: int, message: str, **fields: object) -> None:
    """Log an event with fields (numbers, text, flags); those that are ``None`` are left out."""
    if logger.isEnabledFor(level):
        known = {name: value for name, value in fields.items() if value is not None}
        logger.log(level, message, extra={"fields": known})


class TextFormatter(logging.Formatter):
    """``time LEVEL logger: message name=value …``"""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        head = f"{_time(record)} {record.levelname} {record.name}: "
        words = [_escaped(record.getMessage())]
        words += [f"{name}={_word(value)}" for name, value in _fields(record).items()]
        lines = [head + " ".join(words)]
        lines += [f"  | {_escaped(line)}" for line in _traceback(self, record).splitlines()]
        return "\n".join(lines)


class JsonFormatter(logging.Formatter):
    """One JSON object; fields stand beside ``time``, ``level``, ``logger`` and ``message``."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        document = {
            **_fields(record),
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        traceback = _traceback(self, record)
        if traceback:
            document["traceback"] = traceback
        # What JSON leaves as it is, a terminal may not.
        return json.dumps(document, default=str).replace("\x7f", "\\u007f")


class StandardErrorHandler(logging.Handler):
    """Writes whole lines to descriptor 2, and waits for nobody: what a reader that is stuck or a full
    disk does not take is dropped, and how much that was is said when it goes on."""

    def __init__(self) -> None:
        super().__init__()
        self._dropped = 0
        self._torn = False

    def emit(self, record: logging.LogRecord) -> None:
        """Write one event; raises nothing."""
        try:
            data = b"\n" if self._torn else b""
            if self._dropped:
                data += _encoded(self.format(_gap(self._dropped)))
            data += _encoded(self.format(record))
            rest = _write(data)
        except Exception:
            self._dropped += 1
            return
        lost = len(rest)
        self._torn = 0 < lost < len(data) or (self._torn and lost == len(data))
        self._dropped = self._dropped + 1 if lost else 0


class RotatedFileHandler(logging.handlers.RotatingFileHandler):
    """Writes to a file of this user's alone, and keeps ``backupCount`` older ones beside it."""

    def _open(self) -> io.TextIOWrapper:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        fd = os.open(self.baseFilename, flags, 0o600)
        # Without a buffer, so that a line that the disk refused is gone and not glued to the next.
        raw: Any = io.FileIO(fd, "ab")
        return io.TextIOWrapper(raw, "utf-8", "backslashreplace", write_through=True)

    def doRollover(self) -> None:  # noqa: N802
        """Begin a new file; what writes to the old one as its standard output or error follows."""
        old = self.stream.fileno() if self.stream else -1
        followers = [fd for fd in (1, 2) if old >= 0 and _same_file(fd, old)]
        super().doRollover()
        if self.stream:
            for fd in followers:
                os.dup2(self.stream.fileno(), fd)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """A line that cannot be written is dropped."""


def set_up(settings: _HasSettings) -> None:
    """Log as the settings (``daemon.log_…``) say; to standard error if the file cannot be opened."""
    hold_standard_streams()
    logging.raiseExceptions = False
    handler: logging.Handler
    trouble: OSError | None = None
    try:
        handler = _file(settings) if settings["daemon.log_file"] else StandardErrorHandler()
    except OSError as error:
        handler, trouble = StandardErrorHandler(), error
    form = JsonFormatter() if settings["daemon.log_format"] == "json" else TextFormatter()
    handler.setFormatter(form)
    logging.basicConfig(level=settings["daemon.log_level"].upper(), handlers=[handler], force=True)
    if trouble is not None:
        logging.getLogger("ptocache.log").warning("the log cannot be a file: %s", trouble)


def _file(settings: _HasSettings) -> RotatedFileHandler:
    return RotatedFileHandler(
        settings["daemon.log_file"],
        maxBytes=settings["daemon.log_size"],
        backupCount=settings["daemon.log_count"],
    )


def hold_standard_streams() -> None:
    """Open descriptors 0, 1 and 2 if they are closed: the next file to be opened, an index perhaps,
    would otherwise be what every library takes for its standard error."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            if os.open(os.devnull, os.O_RDWR) == fd:
                os.set_inheritable(fd, True)


def _same_file(one: int, other: int) -> bool:
    found = os.fstat(one), os.fstat(other)
    return found[0].st_ino == found[1].st_ino and found[0].st_dev == found[1].st_dev


def _write(data: bytes) -> bytes:
    """Write what is taken without waiting; returns the rest."""
    poll = select.poll()
    poll.register(_STANDARD_ERROR, select.POLLOUT)
    while data and poll.poll(0):
        data = data[os.write(_STANDARD_ERROR, data[:_AT_ONCE]) :]
    return data


def _gap(lines: int) -> logging.LogRecord:
    what = {"msg": "%d lines of the log could not be written", "args": (lines,)}
    where = {"name": "ptocache.log", "levelno": logging.WARNING, "levelname": "WARNING"}
    return logging.makeLogRecord({**where, **what})


def _encoded(line: str) -> bytes:
    return line.encode("utf-8", "backslashreplace") + b"\n"


def _time(record: logging.LogRecord) -> str:
    moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{moment}.{int(record.msecs):03d}Z"


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    found = getattr(record, "fields", None)
    return found if isinstance(found, dict) else {}


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    return formatter.formatException(record.exc_info) if record.exc_info else ""


def _word(value: object) -> str:
    """A value that ends where it seems to end."""
    if isinstance(value, bool):
        return str(value).lower()
    text = str(value)
    if _BARE.fullmatch(text) and text.isprintable():
        return text
    quoted = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{_escaped(quoted)}"'


def _escaped(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text
    )
