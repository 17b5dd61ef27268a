"""What generated protobuf modules define, in a form that two processes can compare."""

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

Described = dict[str, list[object]]


def described(*modules: object) -> Described:
    """Every field and enum value of the modules: full name -> number, type, label, oneof."""
    found: Described = {}
    for module in modules:
        file = module.DESCRIPTOR  # type: ignore[attr-defined]
        for message in file.message_types_by_name.values():
            _add_message(found, message)
        for enum in file.enum_types_by_name.values():
            _add_enum(found, enum)
        for service in file.services_by_name.values():
            for method in service.methods:
                found[method.full_name] = [method.input_type.full_name, method.output_type.full_name]
    return found


def _add_message(found: Described, message: Descriptor) -> None:
    for field in message.fields:
        found[field.full_name] = _field(field)
    for nested in message.nested_types:
        _add_message(found, nested)
    for enum in message.enum_types:
        _add_enum(found, enum)


def _add_enum(found: Described, enum: EnumDescriptor) -> None:
    for value in enum.values:
        found[f"{enum.full_name}.{value.name}"] = [value.number]


def _field(field: FieldDescriptor) -> list[object]:
    named = field.message_type or field.enum_type
    oneof = field.containing_oneof.name if field.containing_oneof else None
    return [field.number, field.type, field.is_repeated, named.full_name if named else None, oneof]
