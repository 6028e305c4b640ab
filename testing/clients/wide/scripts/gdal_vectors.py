"""GDAL, by pyogrio: one operation on layers of points, through /vsis3/."""

import os
import struct
import sys

import numpy as np
import pyogrio
from arrays import check, draw
from gdal_store import options
from pyogrio.raw import read as read_layer
from pyogrio.raw import write as write_layer

# FlatGeobuf is written in one go and has an index, GeoPackage is a database, and GeoJSON is text.
FORMATS = {"fgb": "FlatGeobuf", "gpkg": "GPKG", "geojson": "GeoJSON"}


def at(prefix, ending):
    return f"/vsis3/{os.environ['WIDE_BUCKET']}/{prefix}/layer a+b=ü.{ending}"


def points(count):
    """Well-known binary of a point for each row, on a line."""
    return np.array([struct.pack("<BIdd", 1, 1, row / 1000, row / 2000) for row in range(count)], dtype=object)


def texts(rows):
    return np.array([row.tobytes().hex() for row in rows], dtype=object)


def store(prefix, ending, rows):
    fields = [np.arange(len(rows)), texts(rows)]
    more = {"geometry_type": "Point", "crs": "EPSG:4326", "layer": "layer"}
    write_layer(at(prefix, ending), points(len(rows)), fields, ["row", "data"], driver=FORMATS[ending], **more)


def found(prefix, ending, **more):
    _, _, _, (numbers, data) = read_layer(at(prefix, ending), columns=["row", "data"], **more)
    order = np.argsort(numbers)
    return np.array([np.frombuffer(bytes.fromhex(text), np.uint8) for text in data[order]])


def write(prefix, count):
    for ending in FORMATS:
        store(prefix, ending, draw(int(count)))


def read(prefix, count):
    rows = draw(int(count))
    for ending in FORMATS:
        check(found(prefix, ending), rows)
        check(found(prefix, ending, bbox=(0.0995, 0, 0.1095, 1)), rows[100:110])
        assert pyogrio.read_info(at(prefix, ending))["features"] == len(rows)


def change(prefix, count):
    more = draw(int(count), 2)
    for ending in FORMATS:
        store(prefix, ending, more)
        check(found(prefix, ending), more)


def version():
    print(pyogrio.__version__, "with", pyogrio.__gdal_version_string__)


operation, *arguments = sys.argv[1:]
pyogrio.set_gdal_config_options(options())
globals()[operation](*arguments)
