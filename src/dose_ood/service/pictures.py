"""A picture becomes an image for the model; one of another size is refused before it is decoded."""

import io
from typing import TYPE_CHECKING

import numpy as np

from dose_ood.errors import InputError
from dose_ood.service.judge import Images

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("PNG", "JPEG", "BMP")  # whose readers decode nothing before they are asked for pixels


def read_picture(body: bytes, shape: tuple[int, ...]) -> Images:
    """One picture as an image of shape (1, c, h, w); it is never scaled, since that changes what is measured."""
    try:
        import PIL.Image
    except ModuleNotFoundError:
        raise InputError("pictures need Pillow, which this service does not have: send .npy") from None
    channels, height, width = shape
    expected = f"expected a picture of {width}×{height} pixels, {'grey' if channels == 1 else 'RGB'}"
    try:
        with PIL.Image.open(io.BytesIO(body), formats=FORMATS) as picture:
            if picture.size != (width, height):
                raise InputError(f"{expected}, got {picture.size[0]}×{picture.size[1]}")
            pixels = _pixels(picture, expected)
    except (PIL.Image.DecompressionBombError, PIL.Image.DecompressionBombWarning):
        raise InputError(f"{expected}, got one of many millions") from None
    except InputError:
        raise
    except (OSError, ValueError, SyntaxError, EOFError) as error:
        raise InputError(f"{expected}, got something that cannot be decoded") from error
    return _with_channels(pixels, channels, expected)


def _pixels(picture: "Image", expected: str) -> Images:
    """The pixels, shape (h, w, c); what is lost, such as transparency, is refused rather than dropped."""
    mode = picture.mode
    if mode in ("P", "PA", "LA") or "transparency" in picture.info:
        picture = picture.convert("RGBA")
    elif mode == "1":
        picture = picture.convert("L")
    if picture.mode not in ("L", "RGB", "RGBA"):
        raise InputError(f"{expected}, 8 bits a channel, got mode {mode}")
    pixels = np.asarray(picture, np.uint8)
    pixels = pixels[..., None] if pixels.ndim == 2 else pixels
    if pixels.shape[2] == 4 and (pixels[..., 3] != 255).any():
        raise InputError(f"{expected}, got one that is transparent in places")
    return pixels[..., :3]


def _with_channels(pixels: Images, channels: int, expected: str) -> Images:
    """Grey may come as RGB with equal channels, and go where colour is wanted."""
    if pixels.shape[2] == 3 and channels == 1:
        if (pixels != pixels[..., :1]).any():
            raise InputError(f"{expected}, got colour")
        pixels = pixels[..., :1]
    elif pixels.shape[2] == 1 and channels == 3:
        pixels = np.repeat(pixels, 3, axis=2)
    return np.ascontiguousarray(pixels.transpose(2, 0, 1)[None])
