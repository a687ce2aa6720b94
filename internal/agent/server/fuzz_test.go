// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"bytes"
	"image"
	"image/png"
	"testing"
)

// FuzzScreenshot decodes what a launcher sends: the result is an image of a bounded size, or an error.
func FuzzScreenshot(f *testing.F) {
	var encoded bytes.Buffer
	if err := png.Encode(&encoded, image.NewRGBA(image.Rect(0, 0, 2, 2))); err != nil {
		f.Fatal(err)
	}
	f.Add(false, encoded.Bytes())
	f.Add(true, []byte("P6\n2 1\n255\nabcdef"))
	f.Fuzz(func(t *testing.T, ppm bool, sent []byte) {
		mime := pngType
		if ppm {
			mime = ppmType
		}
		screen, err := readImage(mime, bytes.NewReader(sent), func(int64) error { return nil })
		if err != nil {
			return
		}
		size := screen.Bounds().Size()
		if size.X < 1 || size.Y < 1 || size.X > maxSide || size.Y > maxSide || size.X*size.Y > maxPixels {
			t.Errorf("an image of %s", size)
		}
		if ppm && 3*size.X*size.Y > len(sent) {
			t.Errorf("%d bytes became an image of %s", len(sent), size)
		}
		var again bytes.Buffer
		if err := png.Encode(&again, screen); err != nil {
			t.Errorf("it cannot be written again: %v", err)
		}
	})
}
