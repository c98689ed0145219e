"""`gradwatch completion`: the script by which a shell completes commands, options and names."""

import click
from click.shell_completion import get_completion_class

from gradwatch.cli.help import examples

PLACES = {
    "bash": 'eval "$(gradwatch completion bash)"  # in ~/.bashrc',
    "zsh": 'eval "$(gradwatch completion zsh)"  # in ~/.zshrc, after compinit',
    "fish": "gradwatch completion fish > ~/.config/fish/completions/gradwatch.fish",
}


@click.command(
    "completion",
    short_help="Print the script for completion by Tab: bash, zsh, fish.",
    epilog=examples('eval "$(gradwatch completion bash)"', PLACES["fish"]),
)
@click.argument("shell", type=click.Choice(list(PLACES)))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the script by which SHELL completes commands, options, runs and checks."""
    root = ctx.find_root()
    kind = get_completion_class(shell)
    assert kind is not None
    made = kind(root.command, {}, "gradwatch", "_GRADWATCH_COMPLETE")
    # not made.source(), which would ask bash for its version and complain on standard error
    click.echo(made.source_template % made.source_vars(), nl=False)
    click.echo(f"To have it in every shell: {PLACES[shell]}", err=True)
