"""Clients of Google's storage as programs with one interface, at the GCS endpoint of a server with keys.

Each has the key file that `bywash keys create --gcs` prints, where its library looks for one.
"""

import os
import subprocess

from adapters import HERE, WIDE, Delta, JavaAws, JavaScriptAws, Library, Rclone


def key_file(server):
    """Makes a service account, and returns its key file."""
    file = server.folder / "key.json"
    if not file.exists():
        create = [os.environ["BYWASH_BIN"], "keys", "create", "--gcs", "--data-dir", server.data_dir]
        file.write_text(subprocess.run(create, check=True, capture_output=True, text=True).stdout)
    return file


class Google(Library):
    """A library of Google. `parts` and `pieces` use its transfer manager, where it has one for that direction."""

    has_parts = has_pieces = True

    def __init__(self, server, bucket, home):
        super().__init__(server, bucket, home)
        self.env |= {"WIDE_GCS": server.gcs, "GOOGLE_APPLICATION_CREDENTIALS": str(key_file(server))}

    def parts(self, file, key):
        self.call("parts", file, key)

    def pieces(self, key, file):
        self.call("pieces", key, file)

    def generation(self, key):
        return int(self.call("generation", key))

    def write(self, file, key, generation):
        """Writes if the object has the generation, 0 if there is none; returns whether it was written."""
        return {"written": True, "refused": False}[self.call("write", file, key, generation).strip()]


class GoGoogle(Google):
    path = WIDE / "go/gcs/program"
    command = [path]
    # Its transfer manager only downloads.
    has_parts = False


class JavaGoogle(Google):
    path = WIDE / "java/gcs/classes"
    call = JavaAws.call


class JavaScriptGoogle(Google):
    path = WIDE / "js/gcs/node_modules"
    command = ["node", HERE / "js/gcs.cjs"]
    # The uploads of its transfer manager go to https:// and the bucket before the endpoint's host name alone.
    has_parts = False
    call = JavaScriptAws.call


class RcloneGoogle(Rclone):
    """rclone's backend for Google's storage."""

    upload_options = []
    has_parts = has_pieces = False

    def __init__(self, server, bucket, home):
        super().__init__(server, bucket, home)
        self.env |= {
            "RCLONE_CONFIG_TO_TYPE": "google cloud storage",
            "RCLONE_CONFIG_TO_ENDPOINT": f"{server.gcs}/storage/v1/",
            "RCLONE_CONFIG_TO_SERVICE_ACCOUNT_FILE": str(key_file(server)),
            "RCLONE_CONFIG_TO_BUCKET_POLICY_ONLY": "true",
        }


class GoogleDelta(Delta):
    def __init__(self, server, bucket, home):
        super().__init__(server, bucket, home)
        self.env["GOOGLE_APPLICATION_CREDENTIALS"] = str(key_file(server))


# By the name that the table of results has.
GOOGLE = {
    "google-cloud-storage for Go": GoGoogle,
    "google-cloud-storage for Java": JavaGoogle,
    "@google-cloud/storage": JavaScriptGoogle,
    "rclone, Google": RcloneGoogle,
}
TABLES = {"deltalake, Google": GoogleDelta}
