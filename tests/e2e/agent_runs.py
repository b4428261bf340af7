"""What runs of real agents against tests/server/agent_server share."""

import json
import subprocess

from millrace_server import BUILD

AGENT_SERVER = BUILD / "tests" / "server" / "agent_server"


def can_isolate():
    """Returns whether this machine makes network namespaces without root."""
    return subprocess.run(["unshare", "-rn", "ip", "link", "set", "lo", "up"], capture_output=True).returncode == 0


def call(name, **arguments):
    """Returns the text of a tool call in the format hermes."""
    return f'<tool_call>\n{json.dumps({"name": name, "arguments": arguments})}\n</tool_call>'
