"""A pydantic model that is refused in one line, and changed only with a check."""

from __future__ import annotations

from typing import Any, Self

from pydantic import BaseModel, ValidationError

from zbopt.problem.documents import first_fault


class CheckedModel(BaseModel):
    """Raise one line where a field is wrong, and check every change.

    pydantic's own error has several lines for each field, names its classes and links to its manual, which tells a
    caller of zbopt nothing. ``model_copy`` stays pydantic's: it checks nothing, and is for code that knows its values.
    """

    @classmethod
    def model_validate(cls, obj: Any, **options: Any) -> Self:
        """Build the object from a mapping of its fields.

        Args:
            obj: The fields by name, as a file has them.
            **options: The options of pydantic's own ``model_validate``.

        Raises:
            ValueError: One line that names the first wrong field, its value, the limit and the way out.
        """
        try:
            return super().model_validate(obj, **options)
        except ValidationError as error:
            raise ValueError(first_fault(error, cls.model_fields)) from None

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some fields changed, checked as a new object is.

        Args:
            **changes: New values by field. One value for a list field stands for every stage, or virtual stage;
                ``None`` takes a field back that may be absent.

        Raises:
            ValueError: One line that names the first wrong field, its value, the limit and the way out.

        Example:
            >>> import zbopt
            >>> step = zbopt.instance(stages=2, microbatches=4, memory_cap=2)
            >>> step.replace(memory_cap=1).memory_cap
            (Fraction(1, 1), Fraction(1, 1))
        """
        present = {name: value for name in type(self).model_fields if (value := getattr(self, name)) is not None}
        return type(self).model_validate(present | changes)
