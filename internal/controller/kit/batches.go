// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package kit

import "sync"

// InBatches calls do count times, concurrently in batches that double in size. After a batch with errors it stops and returns the first
// error; the others most likely have the same cause.
func InBatches(count int, do func(i int) error) error {
	for done, size := 0, 1; done < count; done, size = done+size, 2*size {
		size = min(size, count-done)
		errs := make([]error, size)
		var batch sync.WaitGroup
		for i := range size {
			batch.Go(func() { errs[i] = do(done + i) })
		}
		batch.Wait()
		for _, err := range errs {
			if err != nil {
				return err
			}
		}
	}
	return nil
}
