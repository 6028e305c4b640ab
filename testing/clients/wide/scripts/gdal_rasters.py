"""GDAL, by rasterio: one operation on an image of bands in tiles, through /vsis3/."""

import os
import sys

import numpy as np
import rasterio
import rasterio.shutil
from arrays import WIDTH, check, draw
from gdal_store import options
from rasterio.windows import Window

PROFILE = {"driver": "GTiff", "count": 1, "dtype": "uint8", "tiled": True, "blockxsize": 256, "blockysize": 256, "width": WIDTH}


def at(prefix, name="image a+b=ü.tif"):
    return f"/vsis3/{os.environ['WIDE_BUCKET']}/{prefix}/{name}"


def store(place, rows):
    with rasterio.open(place, "w", height=len(rows), **PROFILE) as image:
        image.write(rows, 1)


def write(prefix, count):
    store(at(prefix), draw(int(count)))


def read(prefix, count):
    rows = draw(int(count))
    with rasterio.open(at(prefix)) as image:
        check(image.read(1, window=Window(3, 5, 300, 700)), rows[5:705, 3:303])
        check(image.read(1), rows)


def change(prefix, count):
    rows, more = draw(int(count)), draw(int(count), 2)
    # Written in a second place as tiles with smaller images, and in the first by the bytes that changed.
    rasterio.shutil.copy(at(prefix), at(prefix, "copy.tif"), driver="COG", compress="DEFLATE")
    with rasterio.open(at(prefix, "copy.tif")) as image:
        check(image.read(1), rows)
        assert image.overviews(1), "no smaller image"
    with rasterio.open(at(prefix, "copy.tif"), overview_level=0) as image:
        assert image.read(1).shape == tuple(np.ceil(np.divide(rows.shape, 2)).astype(int))
    store(at(prefix), more)
    with rasterio.open(at(prefix)) as image:
        check(image.read(1), more)
    assert rasterio.shutil.exists(at(prefix, "copy.tif"))
    rasterio.shutil.delete(at(prefix, "copy.tif"))
    try:
        rasterio.open(at(prefix, "copy.tif"))
        raise AssertionError("an image was opened that was deleted")
    except rasterio.RasterioIOError as error:
        assert "does not exist" in str(error), error


def version():
    print(rasterio.__version__, "with", rasterio.__gdal_version__)


operation, *arguments = sys.argv[1:]
with rasterio.Env(**options()):
    globals()[operation](*arguments)
