import socket
import subprocess
import sys

import pytest

from dose_ood import InputError
from dose_ood.engines.ray_data import check_address

SCRIPT = """
import sys
sys.modules["ray"] = None
from dose_ood import InputError
from dose_ood.engines.ray_data import RayEngine
try:
    RayEngine()
except InputError as error:
    print(error)
"""


def test_a_missing_ray_is_one_sentence_that_names_the_extra():
    found = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout == 'the engine ray needs the package ray: pip install "dose-ood[ray]"\n'


def test_an_address_where_nobody_listens_is_refused_at_once():
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{place.getsockname()[1]}"
        for known in (address, f"ray://{address}", "127.0.0.1:99999"):
            with pytest.raises(InputError, match="cannot join the Ray at"):
                check_address(known)
        place.listen()
        check_address(address)
    check_address("auto")
