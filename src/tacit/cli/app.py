"""The command tree, and the one place where errors become exit codes."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from typer.exceptions import TyperException

import tacit
from tacit.cli.audit import audit
from tacit.cli.data import app as data_app
from tacit.cli.demo import demo
from tacit.cli.init import init
from tacit.cli.keys import app as keys_app
from tacit.cli.listing import app as list_app
from tacit.cli.party import party
from tacit.cli.predict import predict
from tacit.cli.recommend import recommend
from tacit.cli.report import report
from tacit.cli.reproduce import reproduce
from tacit.cli.sweep import sweep
from tacit.cli.train import train
from tacit.errors import TacitError, UsageError
from tacit.party.cpu import let_idle_threads_sleep

_DEBUG = "--debug"

app = typer.Typer(
    name="tacit",
    help="Split learning with label privacy: train across parties, protect labels, measure leaks.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command()(demo)
app.command()(train)
app.command()(init)
app.command()(party)
app.command()(predict)
app.command(context_settings={"allow_extra_args": True})(audit)
app.command()(sweep)
app.command()(reproduce)
app.command()(report)
app.command()(recommend)
app.add_typer(list_app, name="list")
app.add_typer(data_app, name="data")
app.add_typer(keys_app, name="keys")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tacit {tacit.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
    _debug: Annotated[bool, typer.Option(_DEBUG, help="Show tracebacks; also later.")] = False,
) -> None:
    """Split learning with label privacy."""


def main(args: list[str] | None = None) -> int:
    """Run the command; return 0, 2 after a user's mistake, 1 after a failure."""
    given = sys.argv[1:] if args is None else args
    let_idle_threads_sleep()  # here, because whatever comes may load torch
    words = [word for word in given if word != _DEBUG]  # it may stand anywhere
    debug = len(words) < len(given)
    try:
        return int(app(args=words, prog_name="tacit", standalone_mode=False) or 0)
    except TyperException as error:
        return _complain(error, error.format_message(), code=2, debug=debug)
    except UsageError as error:
        return _complain(error, str(error), code=2, debug=debug)
    except TacitError as error:
        return _complain(error, str(error), code=1, debug=debug)
    except Exception as error:  # whatever went wrong, a user sees one line; --debug shows the rest
        return _complain(error, f"{type(error).__name__}: {error}", code=1, debug=debug)


def _complain(error: Exception, text: str, *, code: int, debug: bool) -> int:
    if debug:
        raise error
    if text:
        typer.echo(f"error: {' '.join(text.split())}", err=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
