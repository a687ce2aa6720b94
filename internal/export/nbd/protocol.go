// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package nbd

// Magic numbers.
const (
	magicServer     = 0x4e42444d41474943
	magicOption     = 0x49484156454f5054
	magicReply      = 0x0003e889045565a9
	magicRequest    = 0x25609513
	magicSimple     = 0x67446698
	magicStructured = 0x668e33ef
)

// Flags of the handshake. The server's and the client's have the same values.
const (
	flagFixedNewstyle = 1 << 0
	flagNoZeroes      = 1 << 1
)

// Options, and their replies. Replies with the highest bit are errors.
const (
	optGo              = 7
	optStructuredReply = 8
	optSetMetaContext  = 10

	repAck         = 1
	repInfo        = 3
	repMetaContext = 4
	repError       = 1 << 31
	repErrUnknown  = repError + 6

	infoExport    = 0
	infoBlockSize = 3
)

// transmissionHasFlags is set in the flags of each export.
const transmissionHasFlags = 1 << 0

// Commands, and types of the chunks of a structured reply.
const (
	cmdRead        = 0
	cmdBlockStatus = 7

	chunkDone        = 1 << 0 // a flag
	chunkNone        = 0
	chunkData        = 1
	chunkHole        = 2
	chunkBlockStatus = 5
	chunkError       = 1 << 15 // the types of errors have this bit
)

const (
	// maxRead is the greatest request to read, unless the server accepts less. maxStatus is the greatest request for the status of blocks,
	// whose length has 32 bits: a multiple of all block sizes.
	maxRead   = 1 << 20
	maxStatus = 1 << 31
	// maxLeastBlock is the greatest minimum block size that is accepted. The protocol's.
	maxLeastBlock = 1 << 16
	// maxOptionReply is how long a reply to an option may be, and maxOptionReplies how many replies an option may have.
	maxOptionReply   = 8 << 10
	maxOptionReplies = 16
	// maxExtents is how many extents a reply may have for a context, and maxChunks how many chunks a reply may have.
	maxExtents = 128 << 10
	maxChunks  = 16 << 10
	// maxError is how long an error of the server may be. The protocol's limit for all texts.
	maxError = 4 << 10
	// maxName is how long a name may be. The protocol's.
	maxName = 4 << 10
	// maxDisk is the greatest size of an export: 1 PiB.
	maxDisk = 1 << 50
)
