"""How help is laid out: options and commands in sections, examples as they are typed."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import click
from typer.core import TyperCommand, TyperGroup

from gcfed.errors import InputError, unknown

WIDTH = 1000  # of a short help text that is wrapped and never cut

Rows = list[tuple[str, str]]


class SectionedCommand(TyperCommand):
    """A command whose help has its options in sections, and that takes each of them once."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            *_, given = self.make_parser(ctx).parse_args(list(args))
            _refuse_repeated(given)
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx  # a message names the command whose help is of use
            raise

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        _write_paragraphs(self.help or "", formatter)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        _write_sections(_options(self, ctx), formatter)


class SectionedGroup(TyperGroup):
    """Commands in sections, in the order in which a person comes to use them."""

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        _write_paragraphs(self.help or "", formatter)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows: dict[str, Rows] = {}
        for name, command in self.commands.items():
            section = getattr(command, "rich_help_panel", None)
            title = section if isinstance(section, str) else "Commands"
            rows.setdefault(title, []).append((name, command.get_short_help_str(WIDTH)))
        _write_sections({**rows, **_options(self, ctx)}, formatter)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            raise unknown(f"command of {ctx.command_path}", args[0], self.commands)
        return super().resolve_command(ctx, args)


def _refuse_repeated(given: Sequence[click.Parameter]) -> None:
    """Refuse an option that is given twice: the last would win without a word."""
    for option, times in Counter(given).items():
        takes_one = isinstance(option, click.Option) and not (option.multiple or option.is_flag)
        if takes_one and times > 1:
            raise InputError(f"{option.opts[0]} is given {times} times: give it once")


def _options(command: click.Command, ctx: click.Context) -> dict[str, Rows]:
    """What there is to say of each option, by section; those without one come last."""
    rows: dict[str, Rows] = {}
    for param in command.get_params(ctx):
        if (row := param.get_help_record(ctx)) is not None:
            section = getattr(param, "rich_help_panel", None)
            title = section if isinstance(section, str) else "Options"
            plain = row[0], row[1].replace(r"\[", "[")  # typer escapes them for rich
            rows.setdefault(title, []).append(plain)
    if others := rows.pop("Options", None):
        rows["Options"] = others
    return rows


def _write_sections(rows: dict[str, Rows], formatter: click.HelpFormatter) -> None:
    for title, some in rows.items():
        with formatter.section(title):
            formatter.write_dl(some)


def _write_paragraphs(text: str, formatter: click.HelpFormatter) -> None:
    """Wrap paragraphs to the screen; those that are indented, as examples are, stay as they are."""
    formatter.write_paragraph()
    with formatter.indentation():
        for number, paragraph in enumerate(text.strip("\n").split("\n\n")):
            if number:
                formatter.write_paragraph()
            if not paragraph.startswith(" "):
                formatter.write_text(" ".join(paragraph.split()))
                continue
            for line in paragraph.splitlines():
                formatter.write(f"{'':{formatter.current_indent}}{line}\n")
