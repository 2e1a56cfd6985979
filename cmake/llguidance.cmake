# libcoterie-python-names.so: what llguidance's wheel needs in a process without Python (src/constrain/llguidance.c opens both).
add_library(coterie-python-names MODULE src/constrain/module/python_names.c)
add_dependencies(coterie-cli coterie-python-names)
