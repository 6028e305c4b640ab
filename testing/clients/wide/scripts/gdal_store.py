"""How GDAL finds the server."""

import os
import urllib.parse


def options():
    """Returns GDAL's settings. The credentials are in the environment."""
    server = urllib.parse.urlsplit(os.environ["WIDE_URL"])
    return {
        "AWS_S3_ENDPOINT": server.netloc,
        "AWS_HTTPS": "NO",
        "AWS_VIRTUAL_HOSTING": "FALSE",
        "AWS_REGION": os.environ["AWS_REGION"],
        # Formats that go back while they write are written to a local file first.
        "CPL_VSIL_USE_TEMP_FILE_FOR_RANDOM_WRITE": "YES",
        # MiB of a part: what is longer goes in parts.
        "VSIS3_CHUNK_SIZE": "5",
        # Nothing is kept, so that each read asks the server.
        "VSI_CACHE": "FALSE",
        "CPL_VSIL_CURL_NON_CACHED": "/vsis3/",
    }
