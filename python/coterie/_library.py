"""Finds and loads libcoterie: the file that COTERIE_LIBRARY names, then one beside this package, then the system's."""

import contextlib
import ctypes
import ctypes.util
import operator
import os
import pathlib
import sys
import warnings

import numpy

from . import _structs as structs

INVALID_ARGUMENT, OUT_OF_MEMORY = 1, 2  # of cot_status, coterie/status.h


class Error(RuntimeError):
    """What the library refused, other than arguments (ValueError) and for want of memory (MemoryError)."""


class Notice(UserWarning):
    """What the library says by the way: what was assumed, what a file leaves open."""


class _CError(ctypes.Structure):
    _fields_ = [("status", ctypes.c_int), ("message", ctypes.c_char * 256)]


def _candidates():
    named = os.environ.get("COTERIE_LIBRARY")
    if named:
        return [named]  # and no other: a wrong name is a mistake to be told
    found = [str(pathlib.Path(__file__).with_name("libcoterie.so")), ctypes.util.find_library("coterie"), "libcoterie.so"]
    return [path for path in found if path]


def _open():
    reasons = []
    for path in _candidates():
        try:
            return ctypes.CDLL(path)
        except OSError as reason:
            reasons.append(str(reason))
    raise ImportError(
        "cannot load libcoterie.so (`pip install .` builds it; COTERIE_LIBRARY names another): " + "; ".join(reasons)
    )


library = _open()
library.cot_version.restype = ctypes.c_char_p
version = library.cot_version().decode()
free = ctypes.CDLL(None).free
free.argtypes, free.restype = [ctypes.c_void_p], None


def call(name, *arguments):
    """Calls a function of the library that takes a cot_error last and returns a cot_status; raises what it says."""
    function = getattr(library, name)
    function.restype = ctypes.c_int
    error = _CError()
    status = function(*arguments, ctypes.byref(error))
    if not status:
        return
    message = error.message.decode("utf-8", "replace")
    raise {INVALID_ARGUMENT: ValueError, OUT_OF_MEMORY: MemoryError}.get(status, Error)(message)


def pointer(array):
    """The address of a C-contiguous array, which the caller keeps alive; None for None."""
    return None if array is None else ctypes.c_void_p(array.ctypes.data)


def whole(value, name, most=2**31 - 1, least=0):
    """`value` as an int that fits the library's, or an exception that names it."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}, expected a whole number") from None
    if not least <= number <= most:
        raise ValueError(f"{name} is {number}, expected {least} to {most}")
    return number


def host(value, name):
    """A NumPy array of numbers, of whatever numpy.asarray takes or a torch tensor on any device."""
    if isinstance(value, (list, tuple)) and any(isinstance(part, numpy.ma.MaskedArray) for part in value):
        value = numpy.ma.array(value)
    if numpy.ma.is_masked(value):
        raise ValueError(f"{name} has masked elements: fill them in or leave them out")
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.double() if value.is_floating_point() else value
    array = numpy.asarray(value)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{name} holds {array.dtype}, expected real numbers")
    return array


@structs.Say
def say(_context, line):
    """What the library says by the way becomes a warning at the line that called the package."""
    frame, level = sys._getframe(), 1
    while frame.f_back and frame.f_globals.get("__package__") in (__package__, "contextlib", ""):
        frame, level = frame.f_back, level + 1
    warnings.warn(line.decode("utf-8", "replace"), Notice, stacklevel=level)


def text(value):
    """A name or path as the library takes it; None stays None."""
    if value is None:
        return None
    encoded = os.fsencode(value)
    if b"\0" in encoded:  # where the library would take it to end
        raise ValueError(f"{value!r} has a NUL in it")
    return encoded


def array_at(array, kind):
    """A pointer of that type to an array, which the caller keeps alive; None for None."""
    return None if array is None else array.ctypes.data_as(kind)


def copy_of(pointer, *shape):
    """A copy of the library's array of that shape."""
    if 0 in shape:
        return numpy.zeros(shape, pointer._type_)
    return numpy.ctypeslib.as_array(pointer, shape).copy()


@contextlib.contextmanager
def opened(struct, opener, closer, *arguments):
    """A struct that a function of the library fills and another frees."""
    value = struct()
    call(opener, ctypes.byref(value), *arguments)
    try:
        yield value
    finally:
        getattr(library, closer)(ctypes.byref(value))
