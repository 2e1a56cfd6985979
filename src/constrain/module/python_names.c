/* libcoterie-python-names.so: the symbols of Python that the shared object of llguidance's wheel names. Its C functions, which are
 * all that is used of it, call none of them; the wheel's own Python functions would. A process that has Python has the true ones
 * (constrain/llguidance.c). */
#include <stdio.h>
#include <stdlib.h>

struct python_names {
    const char *version; // base/module.h
};
extern const struct python_names cot_python_names;
const struct python_names cot_python_names = {COT_VERSION};

static _Noreturn void called(const char *name)
{
    fprintf(stderr, "llguidance called '%s', and there is no Python in this process\n", name);
    abort();
}

// clang-format off
#define FUNCTION(name) void name(void); void name(void) { called(#name); }
#define OBJECT(name) extern void *name; void *name;

FUNCTION(PyByteArray_AsString) FUNCTION(PyByteArray_Size) FUNCTION(PyBytes_AsString)
FUNCTION(PyBytes_FromStringAndSize) FUNCTION(PyBytes_Size) FUNCTION(PyCMethod_New) FUNCTION(PyDict_New)
FUNCTION(PyDict_Next) FUNCTION(PyDict_Size) FUNCTION(PyErr_Fetch) FUNCTION(PyErr_GivenExceptionMatches)
FUNCTION(PyErr_NewExceptionWithDoc) FUNCTION(PyErr_NormalizeException) FUNCTION(PyErr_Occurred)
FUNCTION(PyErr_PrintEx) FUNCTION(PyErr_Restore) FUNCTION(PyErr_SetObject) FUNCTION(PyErr_SetString)
FUNCTION(PyErr_WriteUnraisable) FUNCTION(PyEval_RestoreThread) FUNCTION(PyEval_SaveThread)
FUNCTION(PyException_SetCause) FUNCTION(PyException_SetTraceback) FUNCTION(PyFloat_AsDouble)
FUNCTION(PyGILState_Ensure) FUNCTION(PyGILState_Release) FUNCTION(PyImport_Import) FUNCTION(PyIter_Next)
FUNCTION(PyList_Append) FUNCTION(PyList_GetItem) FUNCTION(PyList_New) FUNCTION(PyList_SetItem)
FUNCTION(PyList_Size) FUNCTION(PyLong_AsLong) FUNCTION(PyLong_AsUnsignedLongLong) FUNCTION(PyLong_FromLong)
FUNCTION(PyLong_FromSsize_t) FUNCTION(PyLong_FromUnsignedLongLong) FUNCTION(PyModuleDef_Init)
FUNCTION(PyModule_GetNameObject) FUNCTION(PyNumber_Index) FUNCTION(PyObject_Call)
FUNCTION(PyObject_CallObject) FUNCTION(PyObject_DelItem) FUNCTION(PyObject_GC_Track)
FUNCTION(PyObject_GC_UnTrack) FUNCTION(PyObject_GenericSetDict) FUNCTION(PyObject_GetAttr)
FUNCTION(PyObject_GetItem) FUNCTION(PyObject_GetIter) FUNCTION(PyObject_Repr) FUNCTION(PyObject_SetAttr)
FUNCTION(PyObject_SetAttrString) FUNCTION(PyObject_SetItem) FUNCTION(PyObject_Size) FUNCTION(PyObject_Str)
FUNCTION(PySequence_Check) FUNCTION(PyTraceBack_Print) FUNCTION(PyTuple_GetItem) FUNCTION(PyTuple_New)
FUNCTION(PyTuple_SetItem) FUNCTION(PyTuple_Size) FUNCTION(PyType_FromSpec) FUNCTION(PyType_GetFlags)
FUNCTION(PyType_GetSlot) FUNCTION(PyType_IsSubtype) FUNCTION(PyUnicode_AsEncodedString)
FUNCTION(PyUnicode_AsUTF8String) FUNCTION(PyUnicode_FromStringAndSize) FUNCTION(PyUnicode_InternInPlace)
FUNCTION(Py_DecRef) FUNCTION(Py_GetVersion) FUNCTION(Py_IncRef) FUNCTION(Py_IsInitialized)

OBJECT(PyBaseObject_Type) OBJECT(PyBool_Type) OBJECT(PyByteArray_Type) OBJECT(PyBytes_Type)
OBJECT(PyDict_Type) OBJECT(PyExc_AttributeError) OBJECT(PyExc_BaseException) OBJECT(PyExc_OverflowError)
OBJECT(PyExc_RuntimeError) OBJECT(PyExc_SystemError) OBJECT(PyExc_TypeError) OBJECT(PyExc_ValueError)
OBJECT(PyFloat_Type) OBJECT(PyList_Type) OBJECT(PyLong_Type) OBJECT(PyModule_Type) OBJECT(PyTuple_Type)
OBJECT(PyType_Type) OBJECT(PyUnicode_Type) OBJECT(_Py_FalseStruct) OBJECT(_Py_NoneStruct)
OBJECT(_Py_TrueStruct)
