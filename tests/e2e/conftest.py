import openai
import pytest
from millrace_server import BINARY, MODEL, PATIENCE_S, MillraceServer

LONGEST_FIRST = ["test_devices", "test_openapi", "test_ring", "test_tools"]


def pytest_sessionstart(session):
    if not BINARY.exists():
        pytest.exit(f"{BINARY} is not built", returncode=1)
    if not (MODEL / "config.json").exists():
        pytest.exit(f"{MODEL} holds no model", returncode=1)


def pytest_collection_modifyitems(items):
    """Puts the longest files first, so that none of them runs alone at the end while another process has nothing to do."""
    items.sort(key=lambda item: LONGEST_FIRST.index(item.path.stem) if item.path.stem in LONGEST_FIRST else len(LONGEST_FIRST))


@pytest.fixture(scope="session")
def pp1():
    with MillraceServer("--pp-size", 1) as server:
        yield server


@pytest.fixture(scope="session")
def pp4():
    with MillraceServer("--pp-size", 4) as server:
        yield server


@pytest.fixture(scope="session")
def with_template(tmp_path_factory):
    """Returns a function that makes a server with a chat template and further flags."""
    def make(template, *flags):
        path = tmp_path_factory.mktemp("templates") / "template.jinja"
        path.write_text(template)
        return MillraceServer("--chat-template", path, *flags)

    return make


@pytest.fixture(params=["pp1", "pp4"])
def server(request):
    """Returns a server with one stage or four. Each test that uses it runs on both."""
    return request.getfixturevalue(request.param)


def client_of(server, **options):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", timeout=PATIENCE_S, **options)


def async_client_of(server, **options):
    return openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none", timeout=PATIENCE_S, **options)


@pytest.fixture
def client(server):
    with client_of(server) as client:
        yield client


@pytest.fixture
def client4(pp4):
    with client_of(pp4) as client:
        yield client
