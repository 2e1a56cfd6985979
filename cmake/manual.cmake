# The manual's pages and the shells' completions, printed by the program itself: a page for coterie and for each command.
set(cot_manual_dir ${PROJECT_BINARY_DIR}/manual)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/cli/commands.h)
file(READ src/cli/commands.h commands)
string(REGEX MATCHALL "\n    X[(][a-z_]+" commands "${commands}")
list(TRANSFORM commands REPLACE "\n    X[(]" "")

set(cot_manual_pages ${cot_manual_dir}/man1/coterie.1)
set(print COMMAND coterie-cli man > man1/coterie.1)
foreach(command IN LISTS commands)
  string(REPLACE "_" "-" page coterie-${command}.1)
  string(REPLACE "_" ";" words ${command})
  list(APPEND cot_manual_pages ${cot_manual_dir}/man1/${page})
  list(APPEND print COMMAND coterie-cli man ${words} > man1/${page})
endforeach()
file(MAKE_DIRECTORY ${cot_manual_dir}/man1)
add_custom_command(OUTPUT ${cot_manual_pages} ${cot_manual_dir}/coterie.bash ${cot_manual_dir}/_coterie
                   ${print}
                   COMMAND coterie-cli completions bash > coterie.bash
                   COMMAND coterie-cli completions zsh > _coterie
                   DEPENDS coterie-cli WORKING_DIRECTORY ${cot_manual_dir} COMMENT "Printing the manual" VERBATIM)
add_custom_target(manual ALL DEPENDS ${cot_manual_pages} ${cot_manual_dir}/coterie.bash ${cot_manual_dir}/_coterie)
