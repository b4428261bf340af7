# shellcheck shell=bash disable=SC2034,SC2086
# Functions that ./run and ./test share: packages, configuration, build, Python environment. Sourced by bash, never run.

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

packages=(
  clang-19 libclang-rt-19-dev lld-19 ccache meson ninja-build pkg-config
  libboost1.81-dev libsimdjson-dev libspdlog-dev libfmt-dev libpcre2-dev libicu-dev libcli11-dev libdnnl-dev catch2
  liburing-dev libxxhash-dev libssl-dev
)
test_packages=(
  python3 python3-venv clang-format-19 curl iproute2 chromium redis-server openssl openmpi-bin libboost-context1.81-dev
)

say() { printf '%s\n' "$*" >&2; }
die() { say "${0##*/}: $*"; exit 1; }

# alone NAME COMMAND...: runs COMMAND while no other ./run or ./test of this folder runs a command of that NAME.
alone() {
  local name="$1" lock status=0
  shift
  mkdir -p "$root/.cache"
  exec {lock}> "$root/.cache/$name.lock"
  if ! flock --nonblock "$lock"; then
    say "Waiting for another ./run or ./test ($name) ..."
    flock "$lock"
  fi
  "$@" || status=$?
  flock --unlock "$lock" # a child that outlives the command may have inherited it
  exec {lock}>&-
  return "$status"
}

missing_packages() {
  comm -23 <(printf '%s\n' "$@" | sort -u) \
    <(dpkg-query -W -f '${db:Status-Status} ${Package}\n' "$@" 2> /dev/null | sed -n 's/^installed //p' | sort -u)
}

# Installs the Debian packages that are missing. Needs no rights when none is.
ensure_packages() {
  if ! command -v dpkg-query > /dev/null; then
    say "This is not a Debian system. Install the equivalents of these packages: $*"
    return
  fi
  [[ -z $(missing_packages "$@") ]] && return
  alone packages install_packages "$@"
}

install_packages() {
  local missing
  missing="$(missing_packages "$@")"
  [[ -z $missing ]] && return
  local as_root=()
  if [[ $(id -u) != 0 ]]; then
    command -v sudo > /dev/null || die "installing packages needs root or sudo; missing:" $missing
    as_root=(sudo)
  fi
  say "Installing:" $missing
  local log
  log="$(mktemp)"
  if ! { "${as_root[@]}" apt-get update && "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get -o DPkg::Lock::Timeout=600 install --yes --no-install-recommends $missing; } > "$log" 2>&1; then
    tail -n 20 "$log" >&2
    rm -f "$log"
    die "apt-get could not install the packages above"
  fi
  rm -f "$log"
}

# Prints the optional tools and headers that are installed. Meson builds more with them, and remembers what it found.
optional_parts() {
  local part
  # Links are resolved, since the same nvcc may have another path in another shell.
  for part in "$(command -v nvcc)" "$(command -v g++)" /usr/local/cuda/bin/nvcc /usr/lib/*/libboost_context.* \
    {/usr,/usr/local,/usr/local/cuda}/include/{cuda_runtime_api,nccl,cublasLt}.h; do
    [[ ! -e $part ]] || readlink -f "$part"
  done | sort -u
}

# configure FOLDER [MESON OPTION...]: configures a build folder once, and again when optional parts have come or gone.
# Ninja itself runs Meson again when a meson.build changes.
configure() { alone "${1##*/}" configure_alone "$@"; }

configure_alone() {
  local folder="$1" log linker=() options=()
  shift
  if [[ -f $folder/build.ninja ]]; then
    [[ -f $folder/optional-parts ]] || optional_parts > "$folder/optional-parts"
    [[ $(cat "$folder/optional-parts") == "$(optional_parts)" ]] && return
    # Keeps options that `meson configure` has set.
    mapfile -t options < <(sed -n '/^\[options\]/,/^\[prop/s/^\(\w*\) = \(.*\)/-D\1=\2/p' "$folder/meson-private/cmd_line.txt")
    rm "$folder/build.ninja"
  fi
  command -v ld.lld-19 > /dev/null && linker=(CXX_LD=lld)
  local compiler="clang++-19"
  command -v ccache > /dev/null && compiler="ccache clang++-19"
  say "Configuring ${folder#"$root"/} ..."
  log="$(mktemp)"
  rm -rf "$folder/meson-private" "$folder/meson-info" "$folder/meson-logs"
  if ! env CC=clang-19 CXX="$compiler" "${linker[@]}" meson setup "$folder" "$root" "$@" "${options[@]}" > "$log" 2>&1; then
    tail -n 20 "$log" >&2
    rm -f "$log"
    die "Meson could not configure ${folder#"$root"/}"
  fi
  rm -f "$log"
  optional_parts > "$folder/optional-parts"
}

# build FOLDER [TARGET...]: builds and shows progress, on a terminal in one line, elsewhere at each tenth, and errors.
build() { alone "${1##*/}" build_alone "$@"; }

build_alone() {
  local folder="$1" name="${1#"$root"/}/" start=$SECONDS
  shift
  # Prints nothing when everything is built, the usual case.
  if ninja -C "$folder" -n "$@" 2> /dev/null | grep -q 'no work to do'; then return; fi
  say "Building $name ..."
  if [[ -t 2 && ${TERM:-dumb} != dumb ]]; then
    NINJA_STATUS="[$name %p, %f of %t, %es] " ninja -C "$folder" -j "$(nproc)" "$@" >&2 || die "the build failed"
  else
    (
      set -o pipefail
      NINJA_STATUS="@step %f %t " ninja -C "$folder" -j "$(nproc)" "$@" 2>&1 | show_tenths "$name" >&2
    ) || die "the build failed"
  fi
  say "Built $name in $((SECONDS - start)) s."
}

# Replaces ninja's line per step ("@step DONE TOTAL ...") by one line per tenth. Other lines pass.
show_tenths() {
  local name="$1" word finished total rest shown=0 start=$SECONDS
  while IFS= read -r line || [[ -n $line ]]; do
    if [[ $line != "@step "* ]]; then
      printf '%s\n' "$line"
      continue
    fi
    read -r word finished total rest <<< "$line"
    if ((finished * 10 / total > shown)); then
      shown=$((finished * 10 / total))
      printf 'Building %s: %s %% (%s of %s steps, %s s)\n' "$name" "${shown}0" "$finished" "$total" "$((SECONDS - start))"
    fi
  done
}

# Tells whether this machine can use the CUDA module, or MILLRACE_BUILD_CUDA says that another one will.
has_nvidia_driver() {
  [[ -n ${MILLRACE_BUILD_CUDA:-} || -e /dev/nvidiactl || -e /proc/driver/nvidia/version ]] ||
    { command -v ldconfig > /dev/null && ldconfig -p | grep -q 'libcuda\.so\.1'; }
}

# server_targets FOLDER: prints the files of the server, all programs and modules except tests and benchmarks. Without an
# NVIDIA driver it leaves out the CUDA module, since nvcc takes a good part of the build.
server_targets() {
  local kinds='"executable", "shared module", "shared library"'
  has_nvidia_driver || kinds='"executable",'
  meson introspect --targets "$1" | python3 -c '
import json, os, sys
root, folder = sys.argv[1:]
for target in json.load(sys.stdin):
    top_folder = os.path.relpath(target["defined_in"], root).split(os.sep)[0]
    is_program = target["type"] in ('"$kinds"')
    if is_program and top_folder not in ("tests", "bench"):
        print(os.path.relpath(target["filename"][0], folder))
' "$root" "$1"
}

# Makes the Python environment of the end-to-end tests, again when its requirements change. Fails without a network.
ensure_venv() { alone venv make_venv; }

make_venv() {
  local wanted python=python3
  wanted="$(sha256sum "$root/tests/e2e/requirements.txt" | cut -d ' ' -f 1)"
  [[ -f $root/.venv/requirements.sha256 && $(cat "$root/.venv/requirements.sha256") == "$wanted" ]] && return
  [[ -x /usr/bin/python3 ]] && python=/usr/bin/python3
  say "Making the Python environment of the end-to-end tests ..."
  local log
  log="$(mktemp)"
  rm -rf "$root/.venv"
  if ! { "$python" -m venv "$root/.venv" && "$root/.venv/bin/pip" install --disable-pip-version-check \
    --requirement "$root/tests/e2e/requirements.txt"; } > "$log" 2>&1; then
    tail -n 5 "$log" >&2
    rm -f "$log"
    return 1
  fi
  rm -f "$log"
  echo "$wanted" > "$root/.venv/requirements.sha256"
}
