"""Scripts by which bash, zsh and fish complete command lines.

Each starts `metaevo.cli.completion` at TAB, by the Python that printed it.
"""

from __future__ import annotations

import shlex
import sys

BASH = r"""
_metaevo() {
    local IFS=$'\n'
    COMPREPLY=($(COMMAND bash "${COMP_LINE:0:COMP_POINT}" 2>/dev/null))
}
complete -o default -o nospace -F _metaevo metaevo
"""
ZSH = r"""
_metaevo() {
    local -a found
    found=("${(@f)$(COMMAND zsh "$LBUFFER" 2>/dev/null)}")
    if [[ -n "$found" ]]; then compadd -Q -S '' -- $found; else _files; fi
}
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
compdef _metaevo metaevo
"""
FISH = r"""
complete -c metaevo -a '(COMMAND fish (commandline -cp | string collect) 2>/dev/null)'
"""
SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}


def script(shell: str) -> str:
    """Return the script of a shell, a key of `SCRIPTS`."""
    command = f"{shlex.quote(sys.executable)} -P -m metaevo.cli.completion"
    return SCRIPTS[shell].strip().replace("COMMAND", command)
