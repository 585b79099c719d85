"""One rank that converts images: JPEG to BMP, with the Python Imaging Library.

    image_worker.py make|convert OWN BASE IMAGES EDGE

OWN is the rank's directory; the rank is BASE plus ZONAL_RANK. Images are squares of EDGE pixels of
noise, three bytes a pixel as BMP. Prints the number of images and the bytes of JPEG and BMP.
"""
import json
import os
import sys

from PIL import Image


def make(path, edge):
    # Noise of a quarter of the edge: JPEG keeps about a ninth of the bytes, as of a photograph.
    small = Image.frombytes("RGB", (edge // 4, edge // 4), os.urandom(3 * (edge // 4) ** 2))
    small.resize((edge, edge), Image.BICUBIC).save(path + ".jpg", quality=82)


def convert(path, edge):
    with Image.open(path + ".jpg") as image:
        image.load()
        if image.size != (edge, edge):
            sys.exit(f"{path}: {image.size}")
        image.save(path + ".bmp")
    fd = os.open(path + ".bmp", os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def size(path):
    return os.stat(path).st_size if os.path.exists(path) else 0


def main():
    phase, own, base, images, edge = sys.argv[1:]
    rank = int(base) + int(os.environ["ZONAL_RANK"])
    paths = [f"{own}/image-{rank}-{number}" for number in range(int(images))]
    for path in paths:
        {"make": make, "convert": convert}[phase](path, int(edge))
    print(json.dumps({"images": len(paths), "jpeg": sum(size(path + ".jpg") for path in paths),
                      "bmp": sum(size(path + ".bmp") for path in paths)}))


main()
