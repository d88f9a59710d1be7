package certmagic

// Locked and Unlocked are what certmagic's own tests make of a storage.
var Locked, Unlocked func(Storage) Storage

func locked(s Storage) Storage { return Locked(s) }

func unlocked(s Storage) *FileStorage { return Unlocked(s).(*FileStorage) }
