#!/usr/bin/env bash
# The real frameworks, in a virtual environment of their own: set_up.sh PYTHON VENV
#
# torch comes first, pinned to its build without CUDA (+cpu): plain pip would bring gigabytes of CUDA. An index
# that has that build under its plain name is fine too; what was installed is looked at in any case.
set -euo pipefail
python=$1 venv=$2
here=$(cd "$(dirname "$0")/../.." && pwd)
torch='torch==2.13.0+cpu'
frameworks=('tilelang==0.1.15' 'triton==3.9.0')
tools=('pytest>=8.0' 'pytest-timeout>=2.3' 'pytest-xdist>=3.5')

fail() {
  echo "make test-frameworks: $*" >&2
  exit 1
}

"$python" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 15))' ||
  fail "there are wheels of torch 2.13.0 for Python 3.10 to 3.14 only; set FRAMEWORKS_PYTHON=…"
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
pip=("$venv/bin/python" -m pip --disable-pip-version-check install --quiet)

echo "setting up $venv: torch without CUDA …"
"${pip[@]}" "$torch" 2>/dev/null ||
  "${pip[@]}" --extra-index-url https://download.pytorch.org/whl/cpu "$torch" ||
  fail "no index has $torch for this machine"
echo "setting up $venv: ${frameworks[*]} …"
# torch is there already, so nobody looks for another build of it.
"${pip[@]}" "$torch" "${frameworks[@]}" "${tools[@]}" || fail "the frameworks cannot be installed"

"$venv/bin/python" -c 'import sys, torch; sys.exit(torch.version.cuda is not None)' ||
  fail "a CUDA build of torch came in; remove $venv and look at pip's indexes"
if "$venv/bin/python" -m pip list 2>/dev/null | grep -iq '^nvidia-'; then
  fail "packages of CUDA came in; remove $venv and look at pip's indexes"
fi

"${pip[@]}" -e "$here"
# As in the Makefile: plain path entries instead of setuptools' import hook.
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
rm -f "$site"/__editable__*ptocache*
printf '%s\n' "$here" "$here/toolchains" "$here/cli" > "$site/ptocache_roots.pth"
