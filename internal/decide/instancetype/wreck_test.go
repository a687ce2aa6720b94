// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package instancetype_test

import "reflect"

// wreck sets every value to which an object points, at any depth, to its zero value. What shares memory with the object
// loses it.
func wreck(object any) { wreckValue(reflect.ValueOf(object)) }

func wreckValue(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			wreckValue(v.Elem())
			if v.Elem().CanSet() {
				v.Elem().SetZero()
			}
		}
	case reflect.Struct:
		for _, field := range v.Fields() {
			if field.CanInterface() {
				wreckValue(field)
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			wreckValue(v.Index(i))
			v.Index(i).SetZero()
		}
	case reflect.Map:
		v.Clear()
	}
}
