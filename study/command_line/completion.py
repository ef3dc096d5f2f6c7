"""The script with which a shell completes commands, their options, and settings such as `optimizer=momentum`.

shtab writes the script for the options; the words of settings are in functions of ours, because they hold an equals
sign, at which bash splits words.
"""

import argparse

from study.config.composed.choices import GROUPS, choices
from study.config.composed.schema import every_key

SHELLS = ("bash", "zsh")
BASH = """
_study_settings() {{
  local keys=({keys})
  local words=({words})
  local before="${{COMP_WORDS[COMP_CWORD-1]}}" now="$1" group="" before_comma="" word
  # bash splits at "=": `optimizer=m` is three words, or two before its value has begun
  if [[ "$now" == "=" ]]; then group="$before="; now=""
  elif [[ "$before" == "=" && $COMP_CWORD -gt 1 ]]; then group="${{COMP_WORDS[COMP_CWORD-2]}}="; fi
  if [[ -z "$group" ]]; then compgen -W "${{keys[*]}}" -- "$now"; return; fi
  if [[ "$now" == *,* ]]; then before_comma="${{now%,*}},"; now="${{now##*,}}"; fi
  for word in "${{words[@]}}"; do
    [[ "$word" == "$group$now"* ]] && echo "$before_comma${{word#"$group"}}"
  done
}}
"""
NO_SPACE = """
_study_complete() {
  _shtab_study
  [[ "${COMPREPLY[0]}" == *= ]] && compopt -o nospace
}
complete -o bashdefault -F _study_complete study
"""
"""After the equals sign of a key comes its value, without a space."""
ZSH = """
_study_settings() {{
  local -a keys words
  keys=({keys})
  words=({words})
  if [[ "$PREFIX" == *=*,* ]]; then
    local group="${{PREFIX%%=*}}="
    compset -P '*,'
    compadd -- ${{${{(M)words:#$group*}}#$group}}
    return
  fi
  compadd -S '' -- $keys
  compadd -- $words
}}
"""


def completion_arguments(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("shell", choices=SHELLS, help="completes `study`, the short name of `python -m study`")


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """The script for one of SHELLS; `parser`: of the whole command line, under the name that is completed."""
    import shtab

    verbs = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    for verb in verbs.choices.values():
        for action in verb._actions:
            if action.dest == "overrides":
                action.complete = dict.fromkeys(SHELLS, "_study_settings")
            elif action.dest in ("results", "config_dir", "folder", "output"):
                action.complete = shtab.DIRECTORY
    given = {"keys": " ".join(_keys()), "words": " ".join(_words())}
    preamble = {"bash": BASH, "zsh": ZSH}[shell].format(**given)
    return str(shtab.complete(parser, shell=shell, preamble=preamble)) + (NO_SPACE if shell == "bash" else "")


def _keys() -> list[str]:
    """The settings without their values: groups first."""
    return [f"{key}=" for key in dict.fromkeys([*GROUPS, *(name for name, _, _ in every_key())])]


def _words() -> list[str]:
    """The settings whose values are known: the choices of groups."""
    return [f"{group}={each.name}" for group in GROUPS for each in choices(group)]
